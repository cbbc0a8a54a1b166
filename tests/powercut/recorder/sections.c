/* Sections: a system call that changes something, together with the record of it.
 *
 * A section runs under the mutex, before the caller learns of the change. A sync is logged twice, before and
 * after, and runs outside of the mutex: changes logged before its begin are durable at its end. The order of
 * the log is therefore one that callers can rely on.
 */
#include "recorder.h"

#include <pthread.h>

static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

void enter(void) { pthread_mutex_lock(&mutex); }
void leave(void) { pthread_mutex_unlock(&mutex); }
