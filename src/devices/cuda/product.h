// Matrix products by cuBLASLt. Its matrices are column-major: ours, transposed, so that a product
// of ours is one of theirs with its operands exchanged.
#pragma once

#include <array>
#include <deque>
#include <map>

#include "device.h"
#include "piper/devices/cuda_kernels.h"

namespace piper::cuda {

// What a product has for itself while it runs: the 32 MiB that the vendor advises, and as much for
// the partial sums of products that are split along k.
inline constexpr int64_t kProductScratch = int64_t{64} << 20;

// "bf16 -> f32 aT·b 768x3072x1024 lines 768 3072 3072 + c + bias gelu_tanh pre", with
// "x 12 steps 1 2 3" after it for several matrices.
std::string to_string(const DeviceProduct& product, bool has_c, bool has_bias, bool has_pre);

// An algorithm: numbers by attribute, its id first.
using AlgorithmNumbers = std::vector<std::pair<int, int64_t>>;
std::string to_string(const AlgorithmNumbers& numbers);  // "id=66 tile=20"
// Fails if the algorithm adds up parts of k otherwise than by storing all partial sums and adding
// them in a separate step, whose order is fixed: then its bits could vary from run to run.
Status check_reduction(const AlgorithmNumbers& numbers);

// Holds the table of algorithms, by "DEVICE | VERSION | PRODUCT".
struct AlgorithmTable {
  std::map<std::string, AlgorithmNumbers> entries;
  std::string digest;  // of the text but its comments
};
inline constexpr int64_t kMostTableBytes = 16 << 20;
Result<AlgorithmTable> read_algorithms(std::string_view text);
// Returns the table's text, in the order of keys, after these comments.
std::string print_algorithms(const AlgorithmTable& table, std::string_view comments);
// Returns what this process takes: products_cuda.txt as it was built in, unless take_cuda_products
// said another.
const AlgorithmTable& algorithms_here();

// Numbers the operands of a product, in order.
enum Operand : uint8_t { kA, kB, kC, kBias, kD, kPre, kOperands };

class Products {
 public:
  // The table outlives it.
  static Result<std::unique_ptr<Products>> open(const Device& device, const AlgorithmTable& table);
  ~Products();

  // Returns a product of these operands, as DeviceProduct has them, by the algorithm that is listed
  // for it, else by the library's first; or by this one. Error: the library has no way, or not this
  // one.
  Result<int32_t> bind(const DeviceProduct& product, std::span<std::byte* const> operands,
                       const AlgorithmNumbers* algorithm = nullptr);
  // Returns what the table lists it under.
  std::string key_of(const DeviceProduct& product, std::span<std::byte* const> operands) const;
  // Returns at most so many algorithms that the library offers for it, its first one first: those
  // that check_reduction allows.
  Result<std::vector<AlgorithmNumbers>> offers(const DeviceProduct& product,
                                               std::span<std::byte* const> operands, int most);
  // Returns the library's status. `scratch`: of kProductScratch, which nobody else uses meanwhile.
  int run(int32_t bound, std::byte* scratch, CuStream* stream) const;
  const char* name_of(int status) const { return functions_.cublasLtGetStatusName(status); }

 private:
  struct Layouts {
    LtLayout *a = nullptr, *b = nullptr, *d = nullptr;
  };
  struct Bound {
    const Layouts* layouts = nullptr;
    LtDesc* description = nullptr;
    LtAlgorithm algorithm;
    size_t workspace = 0;
    std::byte *a = nullptr, *b = nullptr, *c = nullptr, *d = nullptr;
    bool is_f64 = false;
  };
  Products(const Opened<CublasLt>& library, const Device& device, const AlgorithmTable& table)
      : functions_(library.functions), version_(library.version), device_(device), table_(table) {}
  Result<Bound> begin(const DeviceProduct& product, std::span<std::byte* const> operands);
  Result<const Layouts*> layouts_of(const DeviceProduct& product);
  Status make_layout(LtLayout** layout, DType type, int64_t rows, int64_t columns, int64_t line,
                     int64_t batch, int64_t step);
  Status describe(const DeviceProduct& product, std::span<std::byte* const> operands, Bound& bound);
  Status choose(const DeviceProduct& product, std::span<std::byte* const> operands, Bound& bound);
  Status take_listed(const DeviceProduct& product, const AlgorithmNumbers& numbers, Bound& bound);
  // Returns what the library's heuristics name, the best first; never empty.
  Result<std::vector<LtHeuristic>> found_for(std::span<std::byte* const> operands,
                                             const Bound& bound, int most);
  Result<AlgorithmNumbers> numbers_of(const LtAlgorithm& algorithm) const;
  Status checked(const char* call, int status) const;

  const CublasLt& functions_;
  const std::string version_;
  const Device& device_;
  const AlgorithmTable& table_;
  LtContext* context_ = nullptr;
  std::deque<std::pair<DeviceProduct, Layouts>> layouts_;
  std::map<std::string, LtHeuristic> chosen_;  // by product and alignments
  std::vector<LtDesc*> descriptions_;
  std::vector<Bound> bound_;
};

}  // namespace piper::cuda
