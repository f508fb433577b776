// Which instruction sets this build has and this CPU can run, and the table of operations of each.
#include "isa.h"

#if defined(__x86_64__) || defined(__i386__)
#include <cpuid.h>
#ifdef __linux__
#include <sys/syscall.h>
#include <unistd.h>
#endif
#elif defined(__aarch64__) && defined(__linux__)
#include <asm/hwcap.h>
#include <sys/auxv.h>
#elif defined(__aarch64__) && defined(__APPLE__)
#include <sys/sysctl.h>
#endif

#include <cstddef>
#include <stdexcept>

namespace moeinf {
namespace {

struct Isa {
  const char* name;
  const Ops* ops;  // null: not in this build
  bool (*cpu_has)();
};

#if defined(__x86_64__) || defined(__i386__)
bool cpu_has_avx2() { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"); }

// Older compilers do not know the name: leaf 7.1 has the bit.
bool cpu_has_avxvnni() {
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  return cpu_has_avx2() && __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) != 0 && (eax >> 4 & 1) != 0;
}

bool cpu_has_avx512() {
  return __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512vnni") && cpu_has_avx2();
}

bool cpu_has_avx512bf16() { return __builtin_cpu_supports("avx512bf16") && cpu_has_avx512(); }

// The bits of leaf 7.0 for tiles and for their products of bf16 and of bytes. A process uses tiles once Linux
// has granted it their state, for all of its threads.
bool cpu_has_amx() {
#ifdef __linux__
  constexpr unsigned kBits = 1u << 24 | 1u << 22 | 1u << 25;
  constexpr long kRequestPermission = 0x1023, kTileData = 18;
  unsigned eax = 0, ebx = 0, ecx = 0, edx = 0;
  static const bool has = cpu_has_avx512bf16() && __get_cpuid_count(7, 0, &eax, &ebx, &ecx, &edx) != 0 &&
                          (edx & kBits) == kBits &&
                          syscall(SYS_arch_prctl, kRequestPermission, kTileData) == 0;
  return has;
#else
  return false;
#endif
}
#else
bool cpu_has_avx2() { return false; }
bool cpu_has_avxvnni() { return false; }
bool cpu_has_avx512() { return false; }
bool cpu_has_avx512bf16() { return false; }
bool cpu_has_amx() { return false; }
#endif

#if defined(__aarch64__) && defined(__linux__)
bool cpu_has_dotprod() { return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0; }
// Older headers do not know the names: bits 13 and 14.
bool cpu_has_i8mm() {
  constexpr unsigned long kI8mm = 1ul << 13, kBf16 = 1ul << 14;
  return cpu_has_dotprod() && (getauxval(AT_HWCAP2) & (kI8mm | kBf16)) == (kI8mm | kBf16);
}
#elif defined(__aarch64__) && defined(__APPLE__)
bool cpu_has(const char* feature) {
  int has = 0;
  std::size_t num_bytes = sizeof(has);
  return sysctlbyname(feature, &has, &num_bytes, nullptr, 0) == 0 && has != 0;
}
bool cpu_has_dotprod() { return cpu_has("hw.optional.arm.FEAT_DotProd"); }
bool cpu_has_i8mm() {
  return cpu_has_dotprod() && cpu_has("hw.optional.arm.FEAT_I8MM") && cpu_has("hw.optional.arm.FEAT_BF16");
}
#else
bool cpu_has_dotprod() { return false; }
bool cpu_has_i8mm() { return false; }
#endif

bool always() { return true; }

// CMake says which of them the compiler could make.
#ifdef MOEINF_HAS_AVX2
constexpr const Ops* kAvx2 = &isa::avx2;
#else
constexpr const Ops* kAvx2 = nullptr;
#endif
#ifdef MOEINF_HAS_AVXVNNI
constexpr const Ops* kAvxVnni = &isa::avxvnni;
#else
constexpr const Ops* kAvxVnni = nullptr;
#endif
#ifdef MOEINF_HAS_AVX512
constexpr const Ops* kAvx512 = &isa::avx512;
#else
constexpr const Ops* kAvx512 = nullptr;
#endif
#ifdef MOEINF_HAS_AVX512BF16
constexpr const Ops* kAvx512Bf16 = &isa::avx512bf16;
#else
constexpr const Ops* kAvx512Bf16 = nullptr;
#endif
#ifdef MOEINF_HAS_AMX
constexpr const Ops* kAmx = &isa::amx;
#else
constexpr const Ops* kAmx = nullptr;
#endif
#ifdef MOEINF_HAS_NEON
constexpr const Ops* kNeon = &isa::neon;
#else
constexpr const Ops* kNeon = nullptr;
#endif
#ifdef MOEINF_HAS_NEON_DOTPROD
constexpr const Ops* kNeonDotprod = &isa::neon_dotprod;
#else
constexpr const Ops* kNeonDotprod = nullptr;
#endif
#ifdef MOEINF_HAS_NEON_I8MM
constexpr const Ops* kNeonI8mm = &isa::neon_i8mm;
#else
constexpr const Ops* kNeonI8mm = nullptr;
#endif

const Isa kIsas[] = {
    // best first
    {"amx", kAmx, cpu_has_amx},
    {"avx512bf16", kAvx512Bf16, cpu_has_avx512bf16},
    {"avx512", kAvx512, cpu_has_avx512},
    {"avxvnni", kAvxVnni, cpu_has_avxvnni},
    {"avx2", kAvx2, cpu_has_avx2},
    {"neon_i8mm", kNeonI8mm, cpu_has_i8mm},
    {"neon_dotprod", kNeonDotprod, cpu_has_dotprod},
    {"neon", kNeon, always},
    {"generic", &isa::generic, always},
};

}  // namespace

std::vector<std::string> available_isas() {
  std::vector<std::string> names;
  for (const Isa& isa : kIsas) {
    if (isa.ops != nullptr && isa.cpu_has()) names.push_back(isa.name);
  }
  return names;
}

const Ops& ops_for(const std::string& name) {
  std::string known;
  for (const Isa& isa : kIsas) {
    if (name.empty() && isa.ops != nullptr && isa.cpu_has()) return *isa.ops;
    if (name == isa.name) {
      if (isa.ops == nullptr)
        throw std::invalid_argument("instruction set " + name + " is not in this build");
      if (!isa.cpu_has()) throw std::invalid_argument("this CPU lacks the instruction set " + name);
      return *isa.ops;
    }
    known += std::string(known.empty() ? "" : ", ") + isa.name;
  }
  throw std::invalid_argument("unknown instruction set '" + name + "'; known are " + known);
}

}  // namespace moeinf
