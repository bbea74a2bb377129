// The instruction sets that are compiled: what x86-64 always has, AVX2 with FMA, AVX-512. Others in
// between gain nothing here.
#pragma once

#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
