// What the files that are compiled once for each instruction set begin with.
#pragma once

#define ALWAYS_INLINE inline __attribute__((always_inline))
#define UNROLL _Pragma("GCC unroll 64")
#define STRING_OF(name) #name
#define NAME_OF(name) STRING_OF(name)
// A variable that lies in memory here: the compiler must not hold it in registers across this line.
#define IN_MEMORY(variable) asm volatile("" : "+m"(variable))

#if defined(__x86_64__) || defined(__i386__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif
