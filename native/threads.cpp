#include "threads.hpp"

#include <cstdlib>

#include <sched.h>

namespace paceline {
namespace {

using GompParallel = void (*)(void (*)(void *), void *, unsigned threads, unsigned flags);
using MaxThreads = int (*)();

GompParallel gomp_parallel = nullptr;
MaxThreads omp_max_threads = nullptr;

constexpr int SPINS = 1000;  // some 10 µs; then whoever else wants the core may have it

// One more look at memory that another thread is about to change.
void wait_a_little(int &spins) {
    if (++spins > SPINS) {
        sched_yield();
        return;
    }
#if defined(__x86_64__)
    __builtin_ia32_pause();
#elif defined(__aarch64__)
    __asm__ volatile("yield");
#endif
}

constexpr int MOST_MEMBERS = 64;

// What is left of one member's tasks, which are neighbours: kernels fetch what the next task needs ahead of it.
struct alignas(64) Share {
    int64_t left;  // taken by compare and exchange
};

// Threads that take tasks from the one that leads them, each from its own share, then from the others'. Nobody waits for a
// thread, only for tasks: a thread that comes late, or never, costs nothing but its help.
struct Team {
    void (*lead)(void *);
    void *lead_context;
    int members;
    TaskFunction function;  // of the tasks that are left; cannot change before the last of them is done
    void *context;
    int64_t tasks;
    Share shares[MOST_MEMBERS];
    alignas(64) int64_t done;
    int joined;
    int over;
};

thread_local Team *led = nullptr;  // by this thread

int64_t first_task(const Team &team, int member) { return team.tasks * member / team.members; }

bool take_task_of(Team &team, int member) {
    int64_t &shared = team.shares[member].left;
    int64_t left = __atomic_load_n(&shared, __ATOMIC_RELAXED);
    do {
        if (left == 0) return false;
    } while (!__atomic_compare_exchange_n(&shared, &left, left - 1, true, __ATOMIC_ACQUIRE, __ATOMIC_RELAXED));
    team.function(team.context, first_task(team, member + 1) - left);
    __atomic_fetch_add(&team.done, 1, __ATOMIC_RELEASE);
    return true;
}

bool take_task(Team &team, int member) {
    for (int i = 0; i < team.members; ++i)
        if (take_task_of(team, (member + i) % team.members)) return true;
    return false;
}

void lead_or_follow(void *data) {
    Team &team = *static_cast<Team *>(data);
    if (led == &team) {
        team.lead(team.lead_context);
        __atomic_store_n(&team.over, 1, __ATOMIC_RELEASE);
        return;
    }
    const int member = 1 + __atomic_fetch_add(&team.joined, 1, __ATOMIC_RELAXED);
    for (int spins = 0; !__atomic_load_n(&team.over, __ATOMIC_ACQUIRE);) {
        if (take_task(team, member)) spins = 0;
        else wait_a_little(spins);
    }
}

void run_by_team(Team &team, int64_t tasks, TaskFunction function, void *context) {
    team.function = function;
    team.context = context;
    team.tasks = tasks;
    __atomic_store_n(&team.done, 0, __ATOMIC_RELAXED);
    for (int i = 0; i < team.members; ++i)
        __atomic_store_n(&team.shares[i].left, first_task(team, i + 1) - first_task(team, i), __ATOMIC_RELEASE);
    while (take_task(team, 0)) {}
    for (int spins = 0; __atomic_load_n(&team.done, __ATOMIC_ACQUIRE) < tasks;) wait_a_little(spins);
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
    if (threads <= 1 || tasks <= 1 || !gomp_parallel) {
        for (int64_t task = 0; task < tasks; ++task) function(context, task);
        return;
    }
    if (led) return run_by_team(*led, tasks, function, context);
    struct Job {
        int64_t tasks;
        TaskFunction function;
        void *context;
    } job{tasks, function, context};
    with_team(
        threads < tasks ? threads : static_cast<int>(tasks),
        [](void *data) { const Job &j = *static_cast<Job *>(data); run_by_team(*led, j.tasks, j.function, j.context); },
        &job);
}

void with_team(int threads, void (*function)(void *), void *context) {
    if (threads <= 1 || !gomp_parallel) return function(context);
    Team team{};
    team.members = threads < MOST_MEMBERS ? threads : MOST_MEMBERS;
    team.lead = function;
    team.lead_context = context;
    led = &team;
    gomp_parallel(lead_or_follow, &team, static_cast<unsigned>(team.members), 0);
    led = nullptr;
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
