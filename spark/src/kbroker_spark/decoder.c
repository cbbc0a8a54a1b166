/* Decodes the records of a group of batches into the memory of Arrow columns, like numpy_decoder.py, but record by record.
 *
  * Plain C without Python's headers, called through ctypes; c_decoder.py allocates all memory in the right sizes. Bytes are
 * not trusted: every read is compared with the end of its record, every record with the end of its batch, and the
  * number of records with the room for rows. Damage ends the call; batch_groups.find_damage then describes it.
 */
#include <stdint.h>
#include <string.h>

#define VARINT_BYTES 5
#define VARLONG_BYTES 10

typedef struct {
    int64_t start, end; /* position of its records in the group's memory */
    int64_t count, base_offset, last_offset_delta, base_timestamp;
    int64_t time_of_broker; /* 1: base_timestamp is the time of all records */
} Batch;

typedef struct {
    uint8_t *bytes;  /* NULL: not requested. Room for all bytes of the group */
    int32_t *ends;   /* room for rows + 1; the first is 0 */
    uint8_t *valid;  /* bits, initially all 0 */
    int64_t nulls;
} Binary;

typedef struct {
    int64_t first, end; /* requested offsets: [first, end) */
    int64_t room_rows, room_headers;
    Binary key, value;
    int64_t *offset, *timestamp; /* NULL: not requested, as below */
    int32_t *timestamp_type;
    int32_t *header_ends;                                             /* for each row, like the ends of a Binary */
    int64_t *name_at, *name_length, *value_at, *value_length;         /* for each header */
    int64_t rows, headers; /* out. Headers beyond the room are counted, but not written */
    int64_t odd_times;     /* out: number of times that do not fit into 64 bits of microseconds */
} Columns;

typedef struct {
    const uint8_t *at;
    int64_t length; /* negative: null */
} Piece;

/* The position after a zigzag number; NULL if it is longer than allowed. */
static inline const uint8_t *number(const uint8_t *at, const uint8_t *end, int most_bytes, int64_t *value)
{
    uint64_t zigzag = 0;
    for (int shift = 0; shift < 7 * most_bytes && at < end; shift += 7) {
        uint8_t byte = *at++;
        zigzag |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80) {
            *value = (int64_t)(zigzag >> 1) ^ -(int64_t)(zigzag & 1);
            return at;
        }
    }
    return NULL;
}

/* The position after a length and that many bytes. */
static inline const uint8_t *piece(const uint8_t *at, const uint8_t *end, Piece *piece)
{
    at = number(at, end, VARINT_BYTES, &piece->length);
    piece->at = at;
    if (!at || piece->length < 0)
        return at;
    return piece->length > end - at ? NULL : at + piece->length;
}

static inline void put(Binary *column, int64_t row, const Piece *piece)
{
    int32_t end = column->ends[row];
    if (piece->length < 0) {
        column->nulls++;
    } else {
        memcpy(column->bytes + end, piece->at, (size_t)piece->length);
        end += (int32_t)piece->length;
        column->valid[row >> 3] |= (uint8_t)(1 << (row & 7));
    }
    column->ends[row + 1] = end;
}

static inline void put_time(Columns *out, int64_t row, const Batch *batch, int64_t delta)
{
    int64_t milliseconds, microseconds;
    if (__builtin_add_overflow(batch->base_timestamp, batch->time_of_broker ? 0 : delta, &milliseconds)
        || __builtin_mul_overflow(milliseconds, 1000, &microseconds)) {
        out->odd_times++;
        microseconds = 0;
    }
    out->timestamp[row] = microseconds;
}

/* Reads the headers of one record and returns the position after them. Those of unrequested records are only checked. */
static const uint8_t *headers(const uint8_t *data, const uint8_t *at, const uint8_t *end, int64_t count, int wanted, Columns *out)
{
    for (; count > 0; count--) {
        Piece name, value;
        if (!(at = piece(at, end, &name)) || !(at = piece(at, end, &value)))
            return NULL;
        if (!wanted)
            continue;
        if (out->headers < out->room_headers) {
            out->name_at[out->headers] = name.at - data;
            out->name_length[out->headers] = name.length < 0 ? 0 : name.length;
            out->value_at[out->headers] = value.at - data;
            out->value_length[out->headers] = value.length;
        }
        out->headers++;
    }
    return at;
}

/* Decodes one record, given the bytes after its length. Returns whether it is valid. */
static inline int record(const uint8_t *data, const uint8_t *at, const uint8_t *end, const Batch *batch, Columns *out)
{
    int64_t delta, offset_delta, header_count;
    Piece key, value;
    if (!(at = number(at + 1, end, VARLONG_BYTES, &delta)) || !(at = number(at, end, VARINT_BYTES, &offset_delta)))
        return 0;
    if (offset_delta < 0 || offset_delta > batch->last_offset_delta)
        return 0;
    if (!(at = piece(at, end, &key)) || !(at = piece(at, end, &value)) || !(at = number(at, end, VARINT_BYTES, &header_count)))
        return 0;
    int64_t offset = batch->base_offset + offset_delta;
    int wanted = offset >= out->first && offset < out->end;
    if (header_count > 0)
        at = headers(data, at, end, header_count, wanted && out->header_ends, out);
    if (at != end)
        return 0;
    if (!wanted)
        return 1;
    int64_t row = out->rows++;
    if (out->key.bytes)
        put(&out->key, row, &key);
    if (out->value.bytes)
        put(&out->value, row, &value);
    if (out->offset)
        out->offset[row] = offset;
    if (out->timestamp)
        put_time(out, row, batch, delta);
    if (out->timestamp_type)
        out->timestamp_type[row] = (int32_t)batch->time_of_broker;
    if (out->header_ends)
        out->header_ends[row + 1] = (int32_t)out->headers;
    return 1;
}

/* Returns whether all records are valid; if not, the output is undefined. */
int kbroker_decode(const uint8_t *data, const Batch *batches, int64_t batch_count, Columns *out)
{
    int64_t records = 0;
    for (const Batch *batch = batches; batch < batches + batch_count; batch++) {
        const uint8_t *at = data + batch->start, *end = data + batch->end;
        if ((records += batch->count) > out->room_rows)
            return 0;
        for (int64_t left = batch->count; left > 0; left--) {
            int64_t length;
            if (!(at = number(at, end, VARINT_BYTES, &length)) || length <= 0 || length > end - at)
                return 0;
            if (!record(data, at, at + length, batch, out))
                return 0;
            at += length;
        }
    }
    return 1;
}

/* The sizes of the structures, so that a library built from another source is detected. */
int64_t kbroker_decoder_layout(void)
{
    return (int64_t)(sizeof(Batch) * 1000 + sizeof(Columns));
}
