// What the files that are compiled once for each instruction set begin with.
#pragma once

#define ALWAYS_INLINE inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 64")
#define STRING_OF(name) #name
#define NAME_OF(name) STRING_OF(name)

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif
