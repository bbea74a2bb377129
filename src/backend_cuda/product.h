// Matrix products by cuBLASLt. Its matrices are column-major: ours, transposed, so that a product
// of ours is one of theirs with its operands exchanged.
#pragma once

#include <deque>
#include <map>

#include "device.h"
#include "piper/cuda_kernels.h"

namespace piper::cuda {

// What a product has for itself while it runs, as the vendor advises.
inline constexpr int64_t kProductScratch = int64_t{32} << 20;

// "bf16 -> f32 aT·b 768x3072x1024 lines 768 3072 3072 + c + bias gelu_tanh pre", with
// "x 12 steps 1 2 3" behind it for several matrices.
std::string to_string(const DeviceProduct& product, bool has_c, bool has_bias, bool has_pre);

// The table of algorithms, by "DEVICE | VERSION | PRODUCT": numbers of the attributes by name, the
// algorithm's id first.
struct AlgorithmTable {
  std::map<std::string, std::vector<std::pair<int, int64_t>>> entries;
  std::string digest;  // of the text but its comments
};
Result<AlgorithmTable> read_algorithms(std::string_view text);
const AlgorithmTable& own_algorithms();  // of products_cuda.txt

class Products {
 public:
  // The table outlives it.
  static Result<std::unique_ptr<Products>> open(const Device& device, const AlgorithmTable& table);
  ~Products();

  // A product of these operands, as DeviceProduct has them. Error: the library has no way.
  Result<int32_t> bind(const DeviceProduct& product, std::span<std::byte* const> operands);
  // The library's status. `scratch`: of kProductScratch, which nobody else uses meanwhile.
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
  Result<const Layouts*> layouts_of(const DeviceProduct& product);
  Status make_layout(LtLayout** layout, DType type, int64_t rows, int64_t columns, int64_t line,
                     int64_t batch, int64_t step);
  Status describe(const DeviceProduct& product, std::span<std::byte* const> operands, Bound& bound);
  Status choose(const DeviceProduct& product, std::span<std::byte* const> operands, Bound& bound);
  Status take_listed(const DeviceProduct& product, std::span<const std::pair<int, int64_t>> numbers,
                     Bound& bound);
  Status take_first(std::span<std::byte* const> operands, Bound& bound);
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
