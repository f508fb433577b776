// Which CPUs are physical cores of their own, and the binding of a thread to one.
#pragma once

#include <vector>

namespace moeinf {

// One CPU of each physical core in this process's affinity mask, that of the calling thread last. Empty where
// the system does not tell.
std::vector<int> physical_cores();

// Binds the calling thread; only a hint where the system refuses.
void bind_thread_to(int cpu);

}  // namespace moeinf
