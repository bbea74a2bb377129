// Describes a matrix product to cuBLASLt, and chooses its algorithm by table or heuristic.
#include "product.h"

#include <algorithm>
#include <array>

namespace piper::cuda {
namespace {

constexpr uint32_t kMostAligned = 256;  // bytes

int lt_type(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return kLtF64;
    case DType::kBF16:
      return kLtBF16;
    case DType::kF16:
      return kLtF16;
    case DType::kF32:
      return kLtF32;
    default:
      PIPER_CHECK(false, "no product of {}", info(dtype).name);
  }
}

int epilogue_of(const DeviceProduct& product, bool has_bias, bool has_pre) {
  if (product.activation == DeviceProduct::kNone)
    return has_bias ? kLtEpilogueBias : kLtEpilogueNone;
  if (has_pre) return has_bias ? kLtEpilogueGeluAuxBias : kLtEpilogueGeluAux;
  return has_bias ? kLtEpilogueGeluBias : kLtEpilogueGelu;
}

// Checks that the library has the epilogue.
Status check_epilogue(const DeviceProduct& product, bool has_pre) {
  if (product.activation == DeviceProduct::kNone) return ok_status();
  if (product.type == DType::kF64) return fail("not supported: cuBLASLt has no Gelu of f64");
  if (has_pre && product.ldd % 8 != 0)
    return fail(
        "not supported: cuBLASLt keeps what Gelu is taken of in lines of a multiple of 8, "
        "not of {}",
        product.ldd);
  return ok_status();
}

uint32_t alignment_of(const std::byte* at) {
  const auto address = reinterpret_cast<uintptr_t>(at);
  uint32_t alignment = kMostAligned;
  while (address % alignment != 0) alignment /= 2;
  return alignment;
}

// Returns numbers of two bytes; others have four.
bool is_narrow(int attribute) { return attribute == kLtInner || attribute == kLtCluster; }

std::string name_of_product(const DeviceProduct& p, std::span<std::byte* const> operands) {
  return to_string(p, operands[kC], operands[kBias], operands[kPre]);
}

}  // namespace

std::string to_string(const DeviceProduct& p, bool has_c, bool has_bias, bool has_pre) {
  std::string text = fmt::format("{} -> {} a{}·b{} {}x{}x{} lines {} {} {}", info(p.type).name,
                                 info(p.result).name, p.trans_a ? "T" : "", p.trans_b ? "T" : "",
                                 p.m, p.n, p.k, p.lda, p.ldb, p.ldd);
  if (has_c) text += " + c";
  if (has_bias) text += " + bias";
  if (p.activation != DeviceProduct::kNone) text += " gelu_tanh";
  if (has_pre) text += " pre";
  if (p.batch != 1)
    text += fmt::format(" x {} steps {} {} {}", p.batch, p.a_step, p.b_step, p.d_step);
  return text;
}

Status Products::checked(const char* call, int status) const {
  if (status == 0) return ok_status();
  const char* name = name_of(status);
  return fail("{}: {} ({})", call, name ? name : "an unknown status", status);
}
#define PIPER_LT(call, ...) PIPER_TRY(checked(#call, functions_.call(__VA_ARGS__)))

Result<std::unique_ptr<Products>> Products::open(const Device& device,
                                                 const AlgorithmTable& table) {
  PIPER_ASSIGN(const Opened<CublasLt>* library, opened<CublasLt>());
  std::unique_ptr<Products> products(new Products(*library, device, table));
  PIPER_TRY(
      products->checked("cublasLtCreate", library->functions.cublasLtCreate(&products->context_)));
  return products;
}

Products::~Products() {
  device_.enter();
  for (LtDesc* description : descriptions_) functions_.cublasLtMatmulDescDestroy(description);
  for (const auto& [product, layouts] : layouts_)
    for (LtLayout* layout : {layouts.a, layouts.b, layouts.d})
      if (layout) functions_.cublasLtMatrixLayoutDestroy(layout);
  if (context_) functions_.cublasLtDestroy(context_);
}

// ---- Descriptions -------------------------------------------------------------------------------

Status Products::make_layout(LtLayout** layout, DType type, int64_t rows, int64_t columns,
                             int64_t line, int64_t batch, int64_t step) {
  PIPER_LT(cublasLtMatrixLayoutCreate, layout, lt_type(type), static_cast<uint64_t>(rows),
           static_cast<uint64_t>(columns), line);
  if (batch == 1) return ok_status();
  const auto count = static_cast<int32_t>(batch);
  PIPER_LT(cublasLtMatrixLayoutSetAttribute, *layout, kLtBatch, &count, sizeof count);
  PIPER_LT(cublasLtMatrixLayoutSetAttribute, *layout, kLtStep, &step, sizeof step);
  return ok_status();
}

Result<const Products::Layouts*> Products::layouts_of(const DeviceProduct& p) {
  for (const auto& [product, layouts] : layouts_)
    if (product == p) return &layouts;
  Layouts& made = layouts_.emplace_back(p, Layouts{}).second;
  // Lines of ours are columns of theirs.
  PIPER_TRY(make_layout(&made.a, p.type, p.trans_a ? p.m : p.k, p.trans_a ? p.k : p.m, p.lda,
                        p.batch, p.a_step));
  PIPER_TRY(make_layout(&made.b, p.type, p.trans_b ? p.k : p.n, p.trans_b ? p.n : p.k, p.ldb,
                        p.batch, p.b_step));
  PIPER_TRY(make_layout(&made.d, p.result, p.n, p.m, p.ldd, p.batch, p.d_step));
  return &made;
}

Status Products::describe(const DeviceProduct& p, std::span<std::byte* const> operands,
                          Bound& bound) {
  const bool is_f64 = p.type == DType::kF64;
  PIPER_LT(cublasLtMatmulDescCreate, &bound.description, is_f64 ? kLtComputeF64 : kLtComputeF32,
           is_f64 ? kLtF64 : kLtF32);
  descriptions_.push_back(bound.description);
  const auto set = [&](int attribute, const auto& value) {
    return checked("cublasLtMatmulDescSetAttribute",
                   functions_.cublasLtMatmulDescSetAttribute(bound.description, attribute, &value,
                                                             sizeof value));
  };
  PIPER_TRY(set(kLtTransA, int32_t{p.trans_b ? kLtTransposed : kLtNotTransposed}));
  PIPER_TRY(set(kLtTransB, int32_t{p.trans_a ? kLtTransposed : kLtNotTransposed}));
  const std::byte *bias = operands[kBias], *pre = operands[kPre];
  PIPER_TRY(check_epilogue(p, pre != nullptr));
  PIPER_TRY(set(kLtEpilogue, static_cast<uint32_t>(epilogue_of(p, bias, pre))));
  if (bias) {
    PIPER_TRY(set(kLtBias, bias));
    PIPER_TRY(set(kLtBiasType, int32_t{lt_type(p.result)}));
  }
  if (!pre) return ok_status();
  PIPER_TRY(set(kLtAux, pre));
  PIPER_TRY(set(kLtAuxRow, p.ldd));
  PIPER_TRY(set(kLtAuxType, int32_t{lt_type(p.result)}));
  return p.batch == 1 ? ok_status() : set(kLtAuxStep, p.d_step);
}

// ---- Algorithms ---------------------------------------------------------------------------------

Status Products::take_listed(const DeviceProduct& p, const AlgorithmNumbers& numbers,
                             Bound& bound) {
  const int type = lt_type(p.type), result = lt_type(p.result);
  PIPER_LT(cublasLtMatmulAlgoInit, context_, bound.is_f64 ? kLtComputeF64 : kLtComputeF32,
           bound.is_f64 ? kLtF64 : kLtF32, type, type, result, result,
           static_cast<int>(numbers.front().second), &bound.algorithm);
  for (const auto& [attribute, number] : std::span(numbers).subspan(1)) {
    const auto wide = static_cast<uint32_t>(number);
    const auto narrow = static_cast<uint16_t>(number);
    PIPER_LT(cublasLtMatmulAlgoConfigSetAttribute, &bound.algorithm, attribute,
             is_narrow(attribute) ? static_cast<const void*>(&narrow) : &wide,
             is_narrow(attribute) ? sizeof narrow : sizeof wide);
  }
  LtHeuristic found;
  const Layouts& at = *bound.layouts;
  PIPER_LT(cublasLtMatmulAlgoCheck, context_, bound.description, at.b, at.a, at.d, at.d,
           &bound.algorithm, &found);
  if (found.workspace > static_cast<size_t>(kProductScratch))
    return fail("the listed algorithm takes {} for itself",
                human_bytes(static_cast<int64_t>(found.workspace)));
  bound.workspace = found.workspace;
  return ok_status();
}

Result<std::vector<LtHeuristic>> Products::found_for(std::span<std::byte* const> operands,
                                                     const Bound& bound, int most) {
  LtPreference* wanted = nullptr;
  PIPER_LT(cublasLtMatmulPreferenceCreate, &wanted);
  const auto release = [this](LtPreference* one) {
    functions_.cublasLtMatmulPreferenceDestroy(one);
  };
  const std::unique_ptr<LtPreference, decltype(release)> held(wanted, release);
  const auto set = [&](int attribute, const auto& value) {
    return checked(
        "cublasLtMatmulPreferenceSetAttribute",
        functions_.cublasLtMatmulPreferenceSetAttribute(wanted, attribute, &value, sizeof value));
  };
  PIPER_TRY(set(kLtMostWorkspace, static_cast<uint64_t>(kProductScratch)));
  // Partial sums along k are stored, and added in a separate step: in an order that is fixed.
  PIPER_TRY(set(kLtReductions, uint32_t{kLtReductionNone | kLtReductionStored}));
  const std::byte* c = operands[kC] ? operands[kC] : operands[kD];
  for (const auto& [attribute, at] : {std::pair<int, const std::byte*>{kLtAlignmentA, operands[kB]},
                                      {kLtAlignmentB, operands[kA]},
                                      {kLtAlignmentC, c},
                                      {kLtAlignmentD, operands[kD]}})
    PIPER_TRY(set(attribute, alignment_of(at)));
  std::vector<LtHeuristic> found(static_cast<size_t>(most));
  int count = 0;
  const Layouts& at = *bound.layouts;
  PIPER_LT(cublasLtMatmulAlgoGetHeuristic, context_, bound.description, at.b, at.a, at.d, at.d,
           wanted, most, found.data(), &count);
  if (count == 0) return fail("cuBLASLt has no algorithm for it");
  PIPER_TRY(checked("cublasLtMatmulAlgoGetHeuristic", found[0].state));
  found.resize(static_cast<size_t>(count));
  return found;
}

Result<AlgorithmNumbers> Products::numbers_of(const LtAlgorithm& algorithm) const {
  const auto read = [&](int attribute) -> Result<int64_t> {
    uint32_t number = 0;  // the machine is little-endian: two bytes are its lower half
    size_t written = 0;
    PIPER_LT(cublasLtMatmulAlgoConfigGetAttribute, &algorithm, attribute, &number,
             is_narrow(attribute) ? sizeof(uint16_t) : sizeof number, &written);
    return int64_t{number};
  };
  AlgorithmNumbers numbers;
  for (const int attribute : {kLtAlgorithmId, kLtTile, kLtSplit, kLtReduction, kLtSwizzle,
                              kLtCustom, kLtStages, kLtInner, kLtCluster}) {
    PIPER_ASSIGN(const int64_t number, read(attribute));
    if (number > UINT16_MAX)
      return fail("attribute {} is {}: at most {}", attribute, number, UINT16_MAX);
    numbers.emplace_back(attribute, number);
  }
  PIPER_TRY(check_reduction(numbers));
  return numbers;
}

Result<std::vector<AlgorithmNumbers>> Products::offers(const DeviceProduct& p,
                                                       std::span<std::byte* const> operands,
                                                       int most) {
  PIPER_ASSIGN(const Bound bound, begin(p, operands));
  PIPER_ASSIGN(const std::vector<LtHeuristic> found, found_for(operands, bound, most));
  std::vector<AlgorithmNumbers> offered;
  for (const LtHeuristic& one : found) {
    if (one.state != 0) continue;
    Result<AlgorithmNumbers> numbers = numbers_of(one.algorithm);
    if (numbers && std::find(offered.begin(), offered.end(), *numbers) == offered.end())
      offered.push_back(*std::move(numbers));
  }
  return offered;
}

Status Products::choose(const DeviceProduct& p, std::span<std::byte* const> operands,
                        Bound& bound) {
  const auto listed = table_.entries.find(key_of(p, operands));
  if (listed != table_.entries.end()) return take_listed(p, listed->second, bound);
  std::string key = name_of_product(p, operands);
  for (const std::byte* at : operands) key += fmt::format(" {}", at ? alignment_of(at) : 0);
  if (const auto known = chosen_.find(key); known != chosen_.end()) {
    bound.algorithm = known->second.algorithm;
    bound.workspace = known->second.workspace;
    return ok_status();
  }
  PIPER_ASSIGN(const std::vector<LtHeuristic> found, found_for(operands, bound, 1));
  bound.algorithm = found[0].algorithm;
  bound.workspace = found[0].workspace;
  chosen_[key] = found[0];
  return ok_status();
}

std::string Products::key_of(const DeviceProduct& p, std::span<std::byte* const> operands) const {
  uint32_t aligned = kMostAligned;
  for (const Operand each : {kA, kB, kC, kD})
    aligned = std::min(aligned, alignment_of(operands[each]));
  std::string key =
      fmt::format("{} | {} | {}", device_.facts().name, version_, name_of_product(p, operands));
  if (aligned < kMostAligned) key += fmt::format(" aligned {}", aligned);
  return key;
}

Result<Products::Bound> Products::begin(const DeviceProduct& p,
                                        std::span<std::byte* const> operands) {
  PIPER_CHECK(operands.size() == kOperands, "a product of {} operands", operands.size());
  device_.enter();
  Bound bound{.a = operands[kA], .b = operands[kB], .c = operands[kC], .d = operands[kD]};
  bound.is_f64 = p.type == DType::kF64;
  PIPER_ASSIGN(bound.layouts, layouts_of(p));
  PIPER_TRY(describe(p, operands, bound));
  return bound;
}

Result<int32_t> Products::bind(const DeviceProduct& p, std::span<std::byte* const> operands,
                               const AlgorithmNumbers* algorithm) {
  const auto make = [&]() -> Result<Bound> {
    PIPER_ASSIGN(Bound bound, begin(p, operands));
    PIPER_TRY(algorithm ? take_listed(p, *algorithm, bound) : choose(p, operands, bound));
    return bound;
  };
  Result<Bound> bound = make();
  if (!bound) {
    Error error = std::move(bound).error();
    error.message = fmt::format("the product {}: {}", name_of_product(p, operands), error.message);
    return error;
  }
  bound_.push_back(*bound);
  return static_cast<int32_t>(bound_.size() - 1);
}

int Products::run(int32_t number, std::byte* scratch, CuStream* stream) const {
  static constexpr float kOne = 1, kZero = 0;
  static constexpr double kOne64 = 1, kZero64 = 0;
  const Bound& bound = bound_[static_cast<size_t>(number)];
  const Layouts& at = *bound.layouts;
  const void* one = bound.is_f64 ? static_cast<const void*>(&kOne64) : &kOne;
  const void* zero = bound.is_f64 ? static_cast<const void*>(&kZero64) : &kZero;
  return functions_.cublasLtMatmul(context_, bound.description, one, bound.b, at.b, bound.a, at.a,
                                   bound.c ? one : zero, bound.c ? bound.c : bound.d, at.d, bound.d,
                                   at.d, &bound.algorithm, scratch, bound.workspace, stream);
}

}  // namespace piper::cuda
