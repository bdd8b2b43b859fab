// Hands the work of one attention call to threads.
//
// Usually a task is a unit, which goes through its partitions one after the other. Where a call has too few units for
// its threads to share (one long context being decoded), every partition is a task, and their states are merged at
// the end: the same functions in the same order, so the same bits.
#pragma once

#include "attention.hpp"
#include "threads.hpp"

#include <stdlib.h>

namespace paceline {
namespace PACELINE_PATH {
namespace {

constexpr int64_t PARALLEL_FROM = 100000;  // multiply-adds below which one thread is faster than waking others
constexpr int64_t UNITS_PER_THREAD = 4;    // fewer than these are cut into partitions
constexpr int64_t STARTS_ON_STACK = 1025;

INLINE float *scratch_of_thread(Work &work) {
    float *memory = static_cast<float *>(thread_scratch(sizeof(float) * scratch_floats(work.padded)));
    if (!memory) __atomic_store_n(&work.failed, 1, __ATOMIC_RELAXED);
    return memory;
}

INLINE int64_t first_partition(const Task &task) { return task.first_key / PARTITION; }
INLINE int64_t end_partition(const Task &task) { return (task.last_key + PARTITION - 1) / PARTITION; }

template <class T>
void run_unit(void *data, int64_t index) {
    Work &work = *static_cast<Work *>(data);
    float *memory = scratch_of_thread(work);
    if (!memory) return;
    Task task;
    memory = prepare(task, work, find_unit(work, index), memory);
    const State total = state_at(take(memory, state_floats(UNIT_ROWS, work.padded)), UNIT_ROWS);
    const State part = state_at(take(memory, state_floats(UNIT_ROWS, work.padded)), UNIT_ROWS);
    clear(total, task.unit.rows, work.padded);
    for (int64_t p = first_partition(task); p < end_partition(task); ++p) {
        attend_partition<T>(task, p, part);
        merge(total, part, task.unit.rows, work.padded);
    }
    write_out(work, task.unit, total);
}

// A call cut into partitions: unit u owns tasks [first_task[u], first_task[u + 1]).
struct SplitWork {
    Work *work;
    int64_t units;
    int64_t *first_task;     // [units + 1]
    int64_t *first_float;    // [units]: where in states its first task's state lies
    float *states;
};

template <class T>
void run_partition(void *data, int64_t index) {
    const SplitWork &split = *static_cast<SplitWork *>(data);
    Work &work = *split.work;
    float *memory = scratch_of_thread(work);
    if (!memory) return;
    int64_t u = 0;
    while (split.first_task[u + 1] <= index) ++u;
    Task task;
    prepare(task, work, find_unit(work, u), memory);
    const int64_t part = index - split.first_task[u], rows = task.unit.rows;
    float *state = split.states + split.first_float[u] + part * state_floats(rows, work.padded);
    attend_partition<T>(task, first_partition(task) + part, state_at(state, rows));
}

void merge_unit(const SplitWork &split, int64_t u, float *memory) {
    const Work &work = *split.work;
    const Unit unit = find_unit(work, u);
    const State total = state_at(memory, unit.rows);
    clear(total, unit.rows, work.padded);
    float *state = split.states + split.first_float[u];
    for (int64_t task = split.first_task[u]; task < split.first_task[u + 1]; ++task) {
        merge(total, state_at(state, unit.rows), unit.rows, work.padded);
        state += state_floats(unit.rows, work.padded);
    }
    write_out(work, unit, total);
}

template <class T>
void attend_split(Work &work, int64_t units, int threads) {
    int64_t *numbers = static_cast<int64_t *>(malloc(sizeof(int64_t) * (2 * units + 1)));
    float *memory = scratch_of_thread(work);
    int64_t floats = 0;
    SplitWork split{&work, units, numbers, numbers + units + 1, nullptr};
    if (numbers && memory) {
        numbers[0] = 0;
        for (int64_t u = 0; u < units; ++u) {
            Task task;
            prepare(task, work, find_unit(work, u), memory);
            const int64_t parts = end_partition(task) - first_partition(task);
            split.first_task[u + 1] = split.first_task[u] + parts;
            split.first_float[u] = floats;
            floats += parts * state_floats(task.unit.rows, work.padded);
        }
        split.states = static_cast<float *>(malloc(sizeof(float) * floats));
    }
    if (split.states) {
        parallel_for(split.first_task[units], threads, run_partition<T>, &split);
        memory = scratch_of_thread(work);
        for (int64_t u = 0; memory && u < units; ++u) merge_unit(split, u, memory);
    } else {
        work.failed = 1;
    }
    free(split.states);
    free(numbers);
}

template <class T>
Status attend(const AttentionArgs &a) {
    Work work{&a, a.heads / a.kv_heads, (a.head_dim + W - 1) / W * W, nullptr, 0};
    int64_t on_stack[STARTS_ON_STACK];
    int64_t *starts = on_stack;
    if (a.sequences >= STARTS_ON_STACK) starts = static_cast<int64_t *>(malloc(sizeof(int64_t) * (a.sequences + 1)));
    if (!starts) return NO_MEMORY;
    work.unit_starts = starts;
    starts[0] = 0;
    int64_t multiplications = 0, longest = 0;
    for (int64_t s = 0; s < a.sequences; ++s) {
        const int64_t rows = (a.query_starts[s + 1] - a.query_starts[s]) * work.group;
        starts[s + 1] = starts[s] + (rows + UNIT_ROWS - 1) / UNIT_ROWS * a.kv_heads;
        multiplications += rows * a.kv_heads * a.context_lens[s] * a.head_dim;
        longest = larger(longest, a.context_lens[s]);
    }
    const int threads = multiplications < PARALLEL_FROM ? 1 : max_threads();
    const int64_t units = starts[a.sequences];
    if (threads > 1 && units < UNITS_PER_THREAD * threads && longest > PARTITION)
        attend_split<T>(work, units, threads);
    else
        parallel_for(units, threads, run_unit<T>, &work);
    if (starts != on_stack) free(starts);
    return work.failed ? NO_MEMORY : OK;
}

}  // namespace
}  // namespace PACELINE_PATH
}  // namespace paceline
