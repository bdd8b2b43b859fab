// Threads for the kernels: those that torch already has.
//
// torch's products run on GNU OpenMP's pool. A second pool beside it would fight for the same cores, because idle
// OpenMP threads spin for a while. So nothing here is compiled with OpenMP: the caller hands over the two entry
// points of the runtime that torch loaded, and without them everything runs on the calling thread.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace paceline {

using TaskFunction = void (*)(void *context, int64_t task);

void use_openmp(void *gomp_parallel, void *omp_get_max_threads);

// How many threads torch would use on the calling thread now; 1 without OpenMP.
int max_threads();

// Calls function(context, task) for every task in [0, tasks). Which thread takes which task is left to chance, so
// tasks must not depend on each other.
void parallel_for(int64_t tasks, int threads, TaskFunction function, void *context);

// Calls function(context) on the calling thread and keeps the others together meanwhile: its calls of parallel_for find
// threads that wait actively, a fraction of a microsecond away instead of several. Not to be nested.
void with_team(int threads, void (*function)(void *context), void *context);

// At least `bytes` bytes, 64-byte aligned, owned by the calling thread and reused by its next call. Null when memory
// is out.
void *thread_scratch(size_t bytes);

}  // namespace paceline
