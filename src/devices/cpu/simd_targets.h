// The instruction sets that are compiled: what x86-64 always has, AVX2 with FMA, AVX-512. Others in
// between gain nothing here.
#pragma once

#if defined(PIPER_SANITIZED)  // only what one processor runs is looked at: AVX-512, if it has it
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX2 | HWY_AVX3_DL)
#else
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#endif
