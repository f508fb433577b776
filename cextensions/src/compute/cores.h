// Which CPUs are physical cores of their own, and the binding of a thread to one.
#pragma once

#include <cstddef>
#include <vector>

namespace moeinf {

// One CPU of each physical core in this process's affinity mask, that of the calling thread last. Empty where
// the system does not tell.
std::vector<int> physical_cores();

// Those of the physical cores that a pool of num_threads binds its threads to: all where it uses all, else
// none. Fewer threads are left to the kernel, which keeps them off cores that other processes use: a second
// pool would bind its own to the same cores.
std::vector<int> cores_to_bind(std::size_t num_threads, std::vector<int> physical);

// Binds the calling thread; only a hint where the system refuses.
void bind_thread_to(int cpu);

}  // namespace moeinf
