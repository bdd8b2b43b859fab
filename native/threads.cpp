#include "threads.hpp"

#include <cstdlib>

namespace paceline {
namespace {

using GompParallel = void (*)(void (*)(void *), void *, unsigned threads, unsigned flags);
using MaxThreads = int (*)();

GompParallel gomp_parallel = nullptr;
MaxThreads omp_max_threads = nullptr;

struct Region {
    TaskFunction function;
    void *context;
    int64_t tasks;
    int64_t next;  // taken with atomic additions
};

void take_tasks(void *data) {
    Region &region = *static_cast<Region *>(data);
    for (;;) {
        const int64_t task = __atomic_fetch_add(&region.next, 1, __ATOMIC_RELAXED);
        if (task >= region.tasks) return;
        region.function(region.context, task);
    }
}

struct Scratch {
    void *memory = nullptr;
    size_t bytes = 0;
    ~Scratch() { std::free(memory); }
};

thread_local Scratch scratch;

}  // namespace

void use_openmp(void *parallel, void *max) {
    gomp_parallel = reinterpret_cast<GompParallel>(parallel);
    omp_max_threads = reinterpret_cast<MaxThreads>(max);
}

int max_threads() { return gomp_parallel && omp_max_threads ? omp_max_threads() : 1; }

void parallel_for(int64_t tasks, int threads, TaskFunction function, void *context) {
    if (threads > tasks) threads = static_cast<int>(tasks);
    if (threads <= 1 || !gomp_parallel) {
        for (int64_t task = 0; task < tasks; ++task) function(context, task);
        return;
    }
    Region region{function, context, tasks, 0};
    gomp_parallel(take_tasks, &region, static_cast<unsigned>(threads), 0);
}

void *thread_scratch(size_t bytes) {
    if (bytes > scratch.bytes) {
        std::free(scratch.memory);
        const size_t rounded = (bytes + 4095) / 4096 * 4096;
        scratch.memory = std::aligned_alloc(64, rounded);
        scratch.bytes = scratch.memory ? rounded : 0;
    }
    return scratch.memory;
}

}  // namespace paceline
