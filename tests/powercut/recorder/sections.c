/* Sections: a system call that changes something, together with the record of it.
 *
 * A section runs under the mutex, before the caller learns of the change. A sync is logged twice, before and
 * after, and runs outside of the mutex: changes logged before its begin are durable at its end. The order of
 * the log is therefore one that callers can rely on.
 *
 * kill -9 between the call and its record would leave a change in the file that the log lacks. The next life
 * of the process finds that change and builds on it, and a replay then has a hole. So a test kills between
 * sections only:
 *
 *   recorded process                         test
 *   busy += 1                                stop = 1
 *   stop is 1: busy -= 1, wait               wait until busy is 0
 *   call, record                             kill, wait for the end of the process
 *   busy -= 1                                stop = 0
 *
 * Each side writes its own word before it reads that of the other: at least one of them sees the other. A
 * process that kills itself does it in a section. So does a fault that kills.
 */
#include "recorder.h"

#include <pthread.h>
#include <signal.h>
#include <time.h>

struct control *control;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;

static void lock(void) { pthread_mutex_lock(&mutex); }
static void unlock(void) { pthread_mutex_unlock(&mutex); }

/* A child must not inherit a mutex that another thread of its parent holds. */
__attribute__((constructor)) static void prepare_for_fork(void) { pthread_atfork(lock, unlock, unlock); }

void enter(void) {
    const struct timespec pause = {0, 1000000};
    lock();
    for (;;) {
        __atomic_add_fetch(&control->busy, 1, __ATOMIC_SEQ_CST);
        if (!__atomic_load_n(&control->stop, __ATOMIC_SEQ_CST)) return;
        __atomic_sub_fetch(&control->busy, 1, __ATOMIC_SEQ_CST);
        nanosleep(&pause, NULL);
    }
}

void leave(void) {
    __atomic_sub_fetch(&control->busy, 1, __ATOMIC_SEQ_CST);
    unlock();
}

/* Send this process a signal. The caller is in a section in which nothing was done yet: SIGKILL ends it
 * there, and no other thread is in one. */
void end_process(int signal) {
    if (signal == SIGKILL) __atomic_sub_fetch(&control->busy, 1, __ATOMIC_SEQ_CST);
    syscall(SYS_kill, getpid(), signal);
}

int kill(pid_t process, int signal) {
    if (signal != SIGKILL || process != getpid() || !recording()) return syscall(SYS_kill, process, signal);
    enter();
    end_process(signal);
    return 0;
}
