#include "cores.h"

#ifdef __linux__
#include <sched.h>

#include <algorithm>
#include <fstream>
#include <string>
#endif

namespace moeinf {

#ifdef __linux__
namespace {

// The CPUs of one core share this text ("0,64"); a CPU whose topology is hidden counts as a core of its own.
std::string siblings_of(int cpu) {
  std::ifstream file("/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/thread_siblings_list");
  std::string siblings;
  return std::getline(file, siblings) ? siblings : std::to_string(cpu);
}

}  // namespace

std::vector<int> physical_cores() {
  cpu_set_t allowed;
  if (::sched_getaffinity(0, sizeof(allowed), &allowed) != 0) return {};
  const int current = ::sched_getcpu();
  const std::string own_core = current < 0 ? "" : siblings_of(current);
  std::vector<std::string> known;
  std::vector<int> cores;
  bool own_core_is_allowed = false;
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (!CPU_ISSET(cpu, &allowed)) continue;
    std::string siblings = siblings_of(cpu);
    if (siblings == own_core) {
      own_core_is_allowed = true;
    } else if (std::find(known.begin(), known.end(), siblings) == known.end()) {
      known.push_back(std::move(siblings));
      cores.push_back(cpu);
    }
  }
  if (own_core_is_allowed) cores.push_back(current);
  return cores;
}

void bind_thread_to(int cpu) {
  cpu_set_t one;
  CPU_ZERO(&one);
  CPU_SET(cpu, &one);
  (void)::sched_setaffinity(0, sizeof(one), &one);
}
#else
std::vector<int> physical_cores() { return {}; }
void bind_thread_to(int) {}
#endif

std::vector<int> cores_to_bind(std::size_t num_threads, std::vector<int> physical) {
  if (num_threads < physical.size()) physical.clear();
  return physical;
}

}  // namespace moeinf
