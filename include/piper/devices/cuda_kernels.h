// Programs as NVIDIA's devices run them: kernels as text in CUDA C++, products and attentions for
// the vendor's libraries, and where values are. It calls nothing of CUDA and knows of no device:
// what it makes follows from the program only, so that piperc states memory by it, and a compiler
// of the host runs the same text in tests.
//
// An op computes in f32 (f64 stays f64) and rounds each result once; attention of 16-bit floats
// rounds its weights, and their adjoints, where they are multiplied, too. Sums are formed in an
// order that only the shapes determine: no kernel adds with atomics, none depends on how many
// multiprocessors there are.
#pragma once

#include "piper/devices/kernel_use.h"

namespace piper {

// Says where the memory of an operand is: in an argument of the program, its workspace, its
// literals, or nowhere (of an absent operand: a null pointer).
struct DeviceOperand {
  enum Kind : uint8_t { kAbsent, kArgument, kWorkspace, kLiteral } kind = kAbsent;
  int32_t argument = 0;
  int64_t offset = 0;  // bytes
  int64_t pitch = 0;   // elements from row to row of a matrix; 0: there is no gap between rows
  bool operator==(const DeviceOperand&) const = default;
};

// Names a function of the source: `extern "C" __global__ void NAME(Pointers<COUNT> p)`, whose only
// parameter is the addresses of its operands, side by side.
struct DeviceKernel {
  std::string name;
  int64_t blocks = 1;  // of a grid of one dim
  int32_t threads = 128;
  int64_t shared_bytes = 0;  // dynamic shared memory
  int32_t pointers = 0;
};

// Computes D := activation(A · B [+ C] [+ bias]), `batch` times: row-major matrices, A [m, k] or,
// where it is transposed, [k, m]; B [k, n] or [n, k]; C and D [m, n]. Sums are of f32 (f64 of f64),
// bias and activation are of them as they are, and D is rounded once. Operands, in order: A, B, C
// or absent, bias [n] or absent, D, pre or absent: what the activation is taken of, in D's type. C
// may be where D is. Not empty, nor is k 0.
//
// What libraries do: a bias of any type but f64, 16-byte aligned and without C; a GELU by tanh, of
// sums with a bias, where D has 16 bits, n is a multiple of 8 and pre is 16-byte aligned. All else
// that ops mean is left to kernels.
struct DeviceProduct {
  DType type = DType::kF32;    // of A and B
  DType result = DType::kF32;  // of C, D, bias and pre
  bool trans_a = false, trans_b = false;
  int64_t m = 0, n = 0, k = 0;
  int64_t lda = 0, ldb = 0, ldd = 0;  // elements from row to row; C and pre are as D
  int64_t batch = 1, a_step = 0, b_step = 0, d_step = 0;  // elements from matrix to matrix
  enum Activation : uint8_t { kNone, kGeluTanh } activation = kNone;
  bool operator==(const DeviceProduct&) const = default;
};

// Returns whether cuDNN has a kernel for it, by what is known of its releases from 9.11 on: 16-bit
// floats, widths of whole 16 bytes; causal or not, later by an offset, by numbers of queries and of
// keys in few stretches each (below 2^31); masks of terms, or of booleans that become -∞; a cap.
// The answer depends on the program only; a library that declines is no error (see DeviceStep).
bool cudnn_takes(const DeviceAttention& attention);
// It is given no mask but terms of the attention's type, which kernels make: of the mask's dims, in
// gradients with a row for each query, less absent keys. Rows begin at multiples of 16 bytes.
struct CudnnTerms {
  std::array<int64_t, 4> dims{}, steps{};  // elements between neighbours
  int64_t bytes = 0;                       // 0: there is no mask
};
CudnnTerms cudnn_terms(const DeviceAttention& attention);
// What one call of it is given: all, or, of gradients, so many samples, or heads of one, that its
// workspace stays below kMostCudnnBytes where a slice can: a head of keys, with the heads that read
// it, is not cut. Calls for slices follow each other.
constexpr int64_t kMostCudnnBytes = int64_t{256} << 20;
struct CudnnSlice {
  int64_t samples = 0, kv_heads = 0;  // divide those of all
  int64_t bytes = 0;                  // of workspace for a call
};
CudnnSlice cudnn_slice(const DeviceAttention& attention);

// kAttention is a call of a library that may be missing. The steps after it are of three kinds:
// with the library, those of `before` run ahead of the call and those of `after` behind it; without
// it, only the kernels of `instead` run.
struct DeviceStep {
  enum Kind : uint8_t { kKernel, kProduct, kAttention, kCopy, kZero } kind = kKernel;
  int32_t index = 0;  // of kernels, products or attentions
  // kCopy: from, to; kZero: what becomes zero bytes; kAttention: q, k, v, y, lse, terms, first and
  // first_key and, of gradients, dy, dq, dk, dv.
  std::vector<DeviceOperand> operands;
  int64_t bytes = 0;                           // kCopy, kZero
  DeviceOperand workspace;                     // kAttention: cudnn_slice(…).bytes
  int32_t before = 0, after = 0, instead = 0;  // kAttention: so many steps each, in this order
  int32_t op = 0;  // the first of the program's ops that it runs, as fused: for names
};

struct DeviceProgram {
  FusedProgram fused;
  std::string source;  // one translation unit of all kernels; empty: there are none
  std::vector<DeviceKernel> kernels;
  std::vector<DeviceProduct> products;
  std::vector<DeviceAttention> attentions;
  std::vector<DeviceStep> steps;  // in order
  std::string literals;           // 256-byte aligned
  int64_t workspace_bytes = 0;
};

// Returns what runs in place of a role: matrices of 16-bit floats that only products and
// cross-entropy touch, and whose rows do not begin at multiples of 16 bytes, have a gap after each
// row. Buffers after such a matrix move by its gaps, which the plan states as packed memory.
RoleProgram prepared_for_cuda(RoleProgram role);
// Returns the program with its ops joined as kernels run them; what --explain=traffic counts.
FusedProgram joined_for_cuda(const Program& program);
// Error: names the op that there is no kernel for, and why.
Result<DeviceProgram> device_program(const Program& program);

// These are the text that every source begins with, and the texts of kernels by family ("norms"),
// for callers that compile them apart.
struct DeviceText {
  std::string_view name, text;
};
std::span<const DeviceText> device_texts();
// A source of kernels that fabrics move blocks with: move_16, move_8, move_4, move_2 and move_1, by
// the bytes of an element, of kStridedPointers "addresses" (device/strided.cuh).
inline constexpr size_t kStridedLoops = 16, kStridedPointers = 4 + 3 * kStridedLoops;
std::string strided_source();
// Returns a source of kernels that compare tensors: differences_f64, _f32, _bf16 and _f16, of a, b,
// the number of their elements in place of an address, and what each of kDifferenceThreads a block
// found (device/differences.cuh).
struct Difference {
  double most = 0, scale = 0;  // the largest |a - b|, and the largest |b|
  int64_t count = 0;           // elements of which any bit differs
};
inline constexpr int kDifferenceThreads = 256;
std::string differences_source();
// Returns the names of the ops that there are kernels for.
std::vector<std::string> cuda_ops();

}  // namespace piper
