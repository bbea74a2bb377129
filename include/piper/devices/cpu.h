// The backend that computes on this machine's processor: vectorised loops, some of which are picked
// by processor.
#pragma once

#include <array>

#include "piper/devices/backend.h"
#include "piper/devices/program.h"

namespace piper {

// Pins the calling thread to a core (a number of sched_getaffinity); false where the system
// refuses.
bool pin_to_core(int core);
// What the kernels of a thread may allocate for themselves (a plan's scratch_bytes).
inline constexpr int64_t kKernelScratchBytes = int64_t{4} << 20;

// Says how a matrix product c[m,n] = a[m,k] · b[k,n] is cut; its bits do not depend on it. Products
// work on the part of b of `depth` of k (a multiple of 128) and `columns` (of 64), packed, and with
// `height` rows of a (of 24) before the next ones; with `pack_a` that part of a is packed, too. No
// thread may need more than kKernelScratchBytes for it.
struct ProductCut {
  int64_t depth = 256, columns = 512, height = 240;
  bool pack_a = false;
  bool operator==(const ProductCut&) const = default;
};
// Holds what a choice of the cut looks at.
struct ProductShape {
  DType dtype = DType::kF32;
  bool trans_a = false, trans_b = false;
  int64_t rows = 0, columns = 0, depth = 0;  // m, n, k
};
// Holds what src/devices/cpu/products.txt, whose head describes its form, has for one processor.
struct ProductTable {
  struct Condition {
    enum Of : uint8_t { kType, kTransA, kTransB, kRows, kColumns, kDepth, kLine } of = kType;
    char is = '=';  // or '<' and '>' (or equal), '%' (a multiple of)
    int64_t number = 0;
  };
  struct Rule {
    std::vector<Condition> conditions;
    ProductCut cut;
  };
  std::string entry;        // "AuthenticAMD 25 17 AVX3", "any AVX2" or "any"
  std::string kernels;      // the instruction set that multiplies; none: that of the vectors
  std::string digest;       // of the whole text but its comments
  std::vector<Rule> rules;  // the first one that holds counts; the last one has no conditions
};
// Returns the entry of `processor` ("AuthenticAMD 25 17": vendor, family, model) with the
// instruction set `kernels`; where there is none, that of any processor with it, else that of any.
// The error names the line.
Result<ProductTable> read_products(std::string_view text, std::string_view processor,
                                   std::string_view kernels);
ProductCut cut_of(const ProductTable& table, const ProductShape& shape);
// Returns the table of this processor, as it was built in.
const ProductTable& cpu_products();
std::string cpu_processor();  // "unknown" where it cannot be asked

struct CpuOptions {
  // The caller's thread and threads - 1 more share the work of a launch; the bits are the same for
  // any number.
  int threads = 1;
  std::vector<int> cores;  // by thread: where it is pinned; the caller pins its own. Empty: nowhere
  const ProductTable* products = nullptr;  // outlives the backend; null: cpu_products()
  bool fuse = true;                        // false: every op on its own, with the same bits
};
class CpuBackend : public Backend {
 public:
  using Backend::load;
  // Loads the program as it is: its ops are joined, and none takes 16-bit floats whose kernel does
  // not.
  virtual Result<int32_t> load(const FusedProgram& program) = 0;
};
std::unique_ptr<CpuBackend> make_cpu_backend(const CpuOptions& options = {});
// Returns a program, and what a role takes beside its arenas, as the CPU backend runs it.
FusedProgram joined_for_cpu(const Program& program);
Result<Needs> cpu_needs(const RoleProgram& role);
// The instruction set that this processor's kernels use ("AMX", which multiplies f32 in tiles,
// "AVX3", "AVX2", "SSE2"): processors for which it is the same give the same bits.
std::string_view cpu_kernels();
// Returns the ops that the CPU backend has a kernel for: by name, sorted.
std::vector<std::string> cpu_ops();

// Philox 4x32 with 10 rounds (Salmon, Moraes, Dror, Shaw: Parallel random numbers: as easy as 1, 2,
// 3; SC 2011): what random ops draw from, see src/ir/ops/families/random.cc.
using PhiloxWords = std::array<uint32_t, 4>;
PhiloxWords philox(PhiloxWords counter, uint64_t key);

// Runs one op at once on host data, on the CPU backend: constant folding and tests. An input whose
// Bytes have no data (while its type has elements) is absent.
Result<std::vector<Bytes>> evaluate_op(std::string_view op, const Attrs& attrs,
                                       std::span<const TensorType> input_types,
                                       std::span<const Bytes> inputs,
                                       std::span<const TensorType> output_types);

}  // namespace piper
