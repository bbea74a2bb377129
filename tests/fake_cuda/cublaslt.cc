// cuBLASLt: column-major products, as the handles describe them, one element after the other. Its
// algorithm wants what the preference promised: alignments and workspace. With FAKE_CUDA_OFFERS it
// has several (kOffers).
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <set>

#include "elements.h"
#include "fake.h"

namespace piper::cuda {
struct LtContext : fake::Object {
  const char* kind() const override { return "context of cuBLASLt"; }
};
struct LtDesc : fake::Object {
  const char* kind() const override { return "description of a product"; }
  int compute = 0, scale = 0;
  std::map<int, int64_t> numbers;  // by attribute; what is not set is 0
  int64_t number(int attribute) const {
    const auto found = numbers.find(attribute);
    return found == numbers.end() ? 0 : found->second;
  }
};
struct LtLayout : fake::Object {
  const char* kind() const override { return "layout of a matrix"; }
  int type = 0;
  int64_t rows = 0, columns = 0, line = 0, batch = 1, step = 0;
};
struct LtPreference : fake::Object {
  const char* kind() const override { return "preference"; }
  std::map<int, int64_t> numbers;
};
}  // namespace piper::cuda

using namespace piper;            // NOLINT: what is called is all outside of namespaces
using namespace piper::fake;      // NOLINT
using namespace piper::emulator;  // NOLINT

namespace {

enum LtCode : int {
  kLtNotInitialized = 1,
  kLtInvalidValue = 7,
  kLtExecutionFailed = 13,
  kLtInternal = 14,
  kLtNotSupported = 15,
};
constexpr uint64_t kWorkspace = 1 << 16;
// Of the algorithm's data; kNumbers: of its attributes, a byte each, up to kLtStages, and kMore
// behind them.
enum Datum { kMagic, kOfWorkspace, kOfA, kOfB, kOfC, kOfD, kNumbers, kMore };
constexpr uint64_t kIsOurs = 0xfa4eb1a5;

// What FAKE_CUDA_OFFERS offers, the first first; a product takes so many milliseconds.
struct Offer {
  uint64_t id, tile;
  double ms;
  enum Kind : uint8_t {
    kRight,
    kWrong,       // an element is another
    kVaries,      // so is its last bit, every second time
    kBulky,       // takes more workspace than it may
    kFails,       // when it is called
    kAddsUp,      // sums parts of k into the result
    kStoresSums,  // sums parts of k, stores these sums, and adds them in a separate step
    kUnknownWay,  // is offered, and not known when its numbers are said
  } kind = kRight;
};
constexpr Offer kOffers[] = {{0, 1, 4, Offer::kRight},      {1, 1, 1, Offer::kWrong},
                             {2, 1, 1, Offer::kBulky},      {3, 1, 1, Offer::kFails},
                             {4, 1, 1, Offer::kVaries},     {5, 1, 1, Offer::kAddsUp},
                             {6, 7, 2, Offer::kRight},      {7, 8, 2, Offer::kRight},
                             {8, 1, 1, Offer::kUnknownWay}, {9, 9, 3, Offer::kStoresSums}};
bool has_offers() {
  static const bool has = variable("FAKE_CUDA_OFFERS", 0) != 0;
  return has;
}
uint64_t number_of(const LtAlgorithm& algorithm, int attribute) {
  const uint64_t word = algorithm.data[attribute <= kLtStages ? kNumbers : kMore];
  return word >> 8 * (attribute <= kLtStages ? attribute : attribute - kLtInner) & 255;
}
void set_number(LtAlgorithm& algorithm, int attribute, uint64_t number) {
  uint64_t& word = algorithm.data[attribute <= kLtStages ? kNumbers : kMore];
  const int shift = 8 * (attribute <= kLtStages ? attribute : attribute - kLtInner);
  word = (word & ~(uint64_t{255} << shift)) | number << shift;
}
const Offer& offer_of(const LtAlgorithm& algorithm) {
  const uint64_t id = number_of(algorithm, kLtAlgorithmId);
  return kOffers[id < std::size(kOffers) ? id : 0];
}
// Another way through the tiles is faster, and so are more parts of a long k; clusters are not to
// be had.
double milliseconds_of(const LtAlgorithm& algorithm, int64_t k) {
  if (!has_offers()) return 0;
  constexpr int64_t kLong = 512;
  const Offer& offer = offer_of(algorithm);
  const double ms = offer.kind == Offer::kStoresSums && k >= kLong
                        ? 4.0 / static_cast<double>(number_of(algorithm, kLtSplit))
                        : offer.ms;
  return ms - (number_of(algorithm, kLtSwizzle) == 1 ? 0.25 : 0);
}

// What an algorithm takes for itself: with partial sums, those of each part and matrix.
uint64_t workspace_of(const LtAlgorithm& algorithm, const LtLayout& d) {
  const Offer& offer = offer_of(algorithm);
  if (offer.kind == Offer::kBulky) return uint64_t{128} << 20;
  if (offer.kind != Offer::kStoresSums) return kWorkspace;
  const uint64_t element = d.type == kLtF64 ? sizeof(double) : sizeof(float);
  return number_of(algorithm, kLtSplit) * static_cast<uint64_t>(d.rows * d.columns * d.batch) *
         element;
}

std::optional<DType> type_of(int type) {
  switch (type) {
    case kLtF32:
      return DType::kF32;
    case kLtF64:
      return DType::kF64;
    case kLtF16:
      return DType::kF16;
    case kLtBF16:
      return DType::kBF16;
  }
  return std::nullopt;
}

// An attribute of 4 or 8 bytes, whichever it has.
int set_number(std::map<int, int64_t>& numbers, int attribute, const void* value, size_t bytes) {
  int32_t narrow = 0;
  int64_t wide = 0;
  if (bytes == sizeof narrow) {
    std::memcpy(&narrow, value, bytes);
    wide = narrow;
  } else if (bytes == sizeof wide) {
    std::memcpy(&wide, value, bytes);
  } else {
    return kLtInvalidValue;
  }
  numbers[attribute] = wide;
  return kOk;
}
size_t bytes_of(int attribute) {
  constexpr int kWide[] = {kLtBias, kLtBiasStep, kLtAux, kLtAuxRow, kLtAuxStep};
  return std::find(std::begin(kWide), std::end(kWide), attribute) != std::end(kWide) ? 8 : 4;
}

size_t bytes_of_config(int attribute) {
  return attribute == kLtInner || attribute == kLtCluster ? 2 : 4;
}

// A product, its handles read: what they become later does not count.
struct Product {
  DType type, result;
  bool trans_a, trans_b, is_f64;
  int64_t m, n, k, batch;
  LtLayout a, b, c, d;
  LtDesc described;
  double alpha, beta;
  uintptr_t at_a, at_b, at_c, at_d;

  bool has(int epilogue) const { return (described.number(kLtEpilogue) & epilogue) != 0; }
};
constexpr int kBiasBit = 4, kGeluBit = 32, kAuxBit = 128;

std::string misfit(const Product& p) {
  const int64_t rows_a = p.trans_a ? p.a.columns : p.a.rows;
  const int64_t columns_b = p.trans_b ? p.b.rows : p.b.columns;
  const int64_t k_of_b = p.trans_b ? p.b.columns : p.b.rows;
  if (rows_a != p.m || columns_b != p.n || k_of_b != p.k || p.c.rows != p.m || p.c.columns != p.n)
    return fmt::format("matrices that do not fit: {}x{} · {}x{} -> {}x{}", rows_a, p.k, k_of_b,
                       columns_b, p.m, p.n);
  for (const LtLayout* each : {&p.a, &p.b, &p.c, &p.d}) {
    if (each->line < each->rows)
      return fmt::format("lines of {} for {} rows", each->line, each->rows);
    if (each->batch != p.batch) return "matrices of different number";
  }
  if (p.a.type != p.b.type || p.c.type != p.d.type) return "element types that do not fit";
  if (p.is_f64 != (p.type == DType::kF64) || p.is_f64 != (p.result == DType::kF64))
    return "a way to compute that the element types do not have";
  constexpr int64_t kKnown = kBiasBit | kGeluBit | kAuxBit;
  const int64_t epilogue = p.described.number(kLtEpilogue);
  if (epilogue != kLtEpilogueNone && (epilogue & ~kKnown) != 0) return "an unknown epilogue";
  if (p.is_f64 && p.has(kGeluBit)) return "Gelu of f64";
  if (p.has(kAuxBit) &&
      (p.described.number(kLtAuxRow) < p.m || p.described.number(kLtAuxRow) % 8 != 0 ||
       p.described.number(kLtAux) % 16 != 0))
    return "auxiliary lines that are not aligned";
  return "";
}

// Each line of a matrix may be touched.
std::string touch(State& state, const LtLayout& layout, uintptr_t at, Access access) {
  const int64_t element = info(*type_of(layout.type)).bytes;
  for (int64_t z = 0; z < layout.batch; ++z)
    for (int64_t column = 0; column < layout.columns; ++column) {
      const int64_t first = (z * layout.step + column * layout.line) * element;
      const auto bytes = static_cast<size_t>(layout.rows * element);
      if (!state.range_of(at + static_cast<uintptr_t>(first))) return "no memory of a device";
      const std::string wrong = state.touch(at + static_cast<uintptr_t>(first), bytes, access);
      if (!wrong.empty()) return wrong;
    }
  return "";
}

double gelu(double x) {
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

// op(matrix) as rows of doubles.
std::vector<double> read_matrix(const LtLayout& layout, bool trans, uintptr_t at, int64_t z) {
  const DType type = *type_of(layout.type);
  const int64_t rows = trans ? layout.columns : layout.rows;
  const int64_t columns = trans ? layout.rows : layout.columns;
  std::vector<double> values;
  values.reserve(static_cast<size_t>(rows * columns));
  for (int64_t i = 0; i < rows; ++i)
    for (int64_t j = 0; j < columns; ++j) {
      const int64_t element = z * layout.step + (trans ? i * layout.line + j : j * layout.line + i);
      values.push_back(
          load_number(type, reinterpret_cast<const char*>(at) + element * info(type).bytes));
    }
  return values;
}

void finish(const Product& p, int64_t z, const std::vector<double>& sums) {
  const int64_t element = info(p.result).bytes;
  const auto* c = reinterpret_cast<const char*>(p.at_c);
  const auto* bias = reinterpret_cast<const char*>(p.described.number(kLtBias));
  auto* d = reinterpret_cast<char*>(p.at_d);
  auto* aux = reinterpret_cast<char*>(p.described.number(kLtAux));
  for (int64_t j = 0; j < p.n; ++j)
    for (int64_t i = 0; i < p.m; ++i) {
      // A library's sums are of f32 before anything is added to them: then it makes no difference
      // whether C is added here or by a kernel behind the product.
      double x = p.alpha * sums[static_cast<size_t>(i * p.n + j)];
      if (p.result != DType::kF64) x = static_cast<float>(x);
      if (p.beta != 0)
        x += p.beta * load_number(p.result, c + (z * p.c.step + j * p.c.line + i) * element);
      if (p.has(kBiasBit))
        x += load_number(p.result, bias + (z * p.described.number(kLtBiasStep) + i) * element);
      if (p.has(kAuxBit))
        store_number(
            p.result, x,
            aux + (z * p.described.number(kLtAuxStep) + j * p.described.number(kLtAuxRow) + i) *
                      element);
      if (p.has(kGeluBit)) x = gelu(x);
      store_number(p.result, x, d + (z * p.d.step + j * p.d.line + i) * element);
    }
}

// Adds terms [from, to) of k, rows of doubles times rows of doubles.
std::vector<double> sums_of(const Product& p, const std::vector<double>& a,
                            const std::vector<double>& b, int64_t from, int64_t to) {
  std::vector<double> sums(static_cast<size_t>(p.m * p.n));
  for (int64_t i = 0; i < p.m; ++i)
    for (int64_t k = from; k < to; ++k) {
      const double x = a[static_cast<size_t>(i * p.k + k)];
      const double* row = b.data() + k * p.n;
      double* at = sums.data() + i * p.n;
      for (int64_t j = 0; j < p.n; ++j) at[j] += x * row[j];
    }
  return sums;
}

// The sums of each part of k lie in the workspace, part by part, before they are added.
void multiply(const Product& p, int64_t parts, uintptr_t workspace) {
  const DType type = p.is_f64 ? DType::kF64 : DType::kF32;
  const int64_t element = info(type).bytes;
  for (int64_t z = 0; z < p.batch; ++z) {
    const std::vector<double> a = read_matrix(p.a, p.trans_a, p.at_a, z);
    const std::vector<double> b = read_matrix(p.b, p.trans_b, p.at_b, z);
    if (parts <= 1) {
      finish(p, z, sums_of(p, a, b, 0, p.k));
      continue;
    }
    const int64_t count = p.m * p.n;
    auto* stored = reinterpret_cast<char*>(workspace) + z * parts * count * element;
    for (int64_t part = 0; part < parts; ++part) {
      const std::vector<double> sums =
          sums_of(p, a, b, p.k * part / parts, p.k * (part + 1) / parts);
      for (int64_t i = 0; i < count; ++i)
        store_number(type, sums[static_cast<size_t>(i)], stored + (part * count + i) * element);
    }
    std::vector<double> all(static_cast<size_t>(count));
    for (int64_t i = 0; i < parts * count; ++i)
      all[static_cast<size_t>(i % count)] += load_number(type, stored + i * element);
    finish(p, z, all);
  }
}

// An element of D is another.
void spoil(const Product& p, Offer::Kind kind) {
  static int64_t runs = 0;
  auto* d = reinterpret_cast<char*>(p.at_d);
  if (kind == Offer::kWrong)
    store_number(p.result, 1.5 * load_number(p.result, d) + 1, d);
  else if (kind == Offer::kVaries)
    d[0] = static_cast<char>(d[0] ^ (++runs & 1));
}

Status run(State& state, const Product& p, const LtAlgorithm& algorithm, uintptr_t workspace,
           size_t bytes) {
  LtLayout aux = p.d;
  aux.line = p.described.number(kLtAuxRow);
  aux.step = p.described.number(kLtAuxStep);
  LtLayout bias = p.d;
  bias.columns = bias.batch = 1;
  const auto check = [&](const char* of, const LtLayout& layout, uintptr_t at,
                         Access access) -> Status {
    const std::string wrong = touch(state, layout, at, access);
    if (!wrong.empty()) return fail("{} of a product: {}", of, wrong);
    return ok_status();
  };
  PIPER_TRY(check("A", p.a, p.at_a, Access::kRead));
  PIPER_TRY(check("B", p.b, p.at_b, Access::kRead));
  if (p.beta != 0) PIPER_TRY(check("C", p.c, p.at_c, Access::kRead));
  PIPER_TRY(check("D", p.d, p.at_d, Access::kWrite));
  const auto at = [&](int attribute) {
    return static_cast<uintptr_t>(p.described.number(attribute));
  };
  if (p.has(kBiasBit)) PIPER_TRY(check("the bias", bias, at(kLtBias), Access::kRead));
  if (p.has(kAuxBit)) PIPER_TRY(check("aux", aux, at(kLtAux), Access::kWrite));
  if (bytes > 0 && !state.range_of(workspace)) return fail("the workspace of a product: no memory");
  if (const std::string wrong = state.touch(workspace, bytes, Access::kWrite); !wrong.empty())
    return fail("the workspace of a product: {}", wrong);
  std::memset(reinterpret_cast<void*>(workspace), 0xff, bytes);
  const bool has_parts = has_offers() && offer_of(algorithm).kind == Offer::kStoresSums;
  multiply(p, has_parts ? static_cast<int64_t>(number_of(algorithm, kLtSplit)) : 1, workspace);
  if (has_offers()) spoil(p, offer_of(algorithm).kind);
  state.clock += milliseconds_of(algorithm, p.k);
  return ok_status();
}

std::string misfit(const Product& p, const LtAlgorithm& algorithm, size_t workspace) {
  const uint64_t* data = algorithm.data;
  if (data[kMagic] != kIsOurs) return "an algorithm of another";
  if (workspace < data[kOfWorkspace]) return "less workspace than the algorithm takes";
  if (has_offers() && offer_of(algorithm).kind == Offer::kStoresSums &&
      workspace < workspace_of(algorithm, p.d))
    return "less workspace than partial sums take";
  for (const auto& [at, datum] :
       {std::pair{p.at_a, kOfA}, {p.at_b, kOfB}, {p.at_c, kOfC}, {p.at_d, kOfD}})
    if (data[datum] != 0 && at % data[datum] != 0)
      return "operands that are less aligned than the preference promised";
  return "";
}

// The algorithm that an offer is, or false where it has a reduction that the preference rules out
// or takes more workspace than that allows.
bool make_offer(const Offer& offer, const std::map<int, int64_t>& said, const LtLayout& d,
                LtHeuristic& found) {
  constexpr int64_t kAllReductions = 7, kInPlace = 1, kParts = 4;
  const auto number = [&](int attribute, int64_t otherwise) {
    const auto at = said.find(attribute);
    return at == said.end() ? otherwise : at->second;
  };
  LtAlgorithm& algorithm = found.algorithm;
  algorithm.data[kMagic] = kIsOurs;
  if (has_offers()) {
    set_number(algorithm, kLtAlgorithmId, offer.id);
    set_number(algorithm, kLtTile, offer.tile);
    const int64_t reduction = offer.kind == Offer::kAddsUp       ? kInPlace
                              : offer.kind == Offer::kStoresSums ? int64_t{kLtReductionStored}
                                                                 : int64_t{kLtReductionNone};
    if ((number(kLtReductions, kAllReductions) & reduction) != reduction) return false;
    set_number(algorithm, kLtReduction, static_cast<uint64_t>(reduction));
    if (reduction != kLtReductionNone) set_number(algorithm, kLtSplit, kParts);
  }
  const auto most = static_cast<uint64_t>(number(kLtMostWorkspace, 0));
  found.workspace = offer.kind == Offer::kStoresSums ? workspace_of(algorithm, d)
                                                     : std::min<uint64_t>(kWorkspace, most);
  if (found.workspace > most) return false;
  algorithm.data[kOfWorkspace] = found.workspace;
  for (const auto& [datum, attribute] : {std::pair{kOfA, kLtAlignmentA},
                                         {kOfB, kLtAlignmentB},
                                         {kOfC, kLtAlignmentC},
                                         {kOfD, kLtAlignmentD}})
    algorithm.data[datum] = static_cast<uint64_t>(number(attribute, 256));
  return true;
}

// Whether an offer can be had with these numbers: those that have no parts cannot be split, and
// parts have a reduction.
bool is_known(const LtAlgorithm& algorithm) {
  const Offer& offer = offer_of(algorithm);
  const bool is_split = number_of(algorithm, kLtSplit) > 1;
  const bool can_split = offer.kind == Offer::kStoresSums || offer.kind == Offer::kAddsUp;
  if (is_split != (number_of(algorithm, kLtReduction) != kLtReductionNone)) return false;
  return offer.kind != Offer::kUnknownWay && number_of(algorithm, kLtCluster) == 0 &&
         (can_split || !is_split);
}

// FAKE_CUDA_LAZY=1: a kernel is loaded when it is first launched, and the driver may wait until the
// device has done all that it has to do before it loads one.
bool loads_late() { return variable("FAKE_CUDA_LAZY", 0) != 0; }
void load(State& state, const Product& p, const CuContext& context) {
  static std::set<std::pair<const CuContext*, std::string>> loaded;
  std::string kernel = fmt::format("{} {} {} {}", static_cast<int>(p.type),
                                   static_cast<int>(p.result), p.trans_a, p.trans_b);
  for (const int bit : {kBiasBit, kAuxBit}) kernel += p.has(bit) ? " 1" : " 0";
  if (!loaded.emplace(&context, kernel).second) return;
  state.run_until([&] {
    return std::ranges::all_of(state.streams, [&](const CuStream* one) {
      return one->context->root() != &context || one->queue.empty();
    });
  });
}

}  // namespace

#define FAKE_LT_CALL(name) \
  Call call(#name);        \
  if (call.code != kOk) return kLtInternal
#define FAKE_LT_CHECK(handle) \
  if (!call.state.check(call.name, handle)) return kLtInvalidValue
#define FAKE_LT_DESTROY(function, Type)                               \
  int function(Type* object) {                                        \
    Call call(#function);                                             \
    if (!call.state.check(call.name, object)) return kLtInvalidValue; \
    object->is_alive = false;                                         \
    return call.code == kOk ? static_cast<int>(kOk) : kLtInternal;    \
  }

extern "C" {

size_t cublasLtGetVersion() { return 130007; }
const char* cublasLtGetStatusName(int status) {
  return status == kLtNotInitialized    ? "CUBLAS_STATUS_NOT_INITIALIZED"
         : status == kLtInvalidValue    ? "CUBLAS_STATUS_INVALID_VALUE"
         : status == kLtExecutionFailed ? "CUBLAS_STATUS_EXECUTION_FAILED"
         : status == kLtNotSupported    ? "CUBLAS_STATUS_NOT_SUPPORTED"
                                        : "CUBLAS_STATUS_INTERNAL_ERROR";
}
int cublasLtCreate(LtContext** context) {
  FAKE_LT_CALL(cublasLtCreate);
  if (!current_context()) return kLtNotInitialized;
  *context = call.state.make<LtContext>();
  return kOk;
}
int cublasLtMatmulDescCreate(LtDesc** description, int compute, int scale) {
  FAKE_LT_CALL(cublasLtMatmulDescCreate);
  *description = call.state.make<LtDesc>();
  (*description)->compute = compute;
  (*description)->scale = scale;
  (*description)->numbers[kLtEpilogue] = kLtEpilogueNone;
  return kOk;
}
int cublasLtMatmulDescSetAttribute(LtDesc* description, int attribute, const void* value,
                                   size_t bytes) {
  FAKE_LT_CALL(cublasLtMatmulDescSetAttribute);
  FAKE_LT_CHECK(description);
  if (bytes != bytes_of(attribute)) return kLtInvalidValue;
  return set_number(description->numbers, attribute, value, bytes);
}
int cublasLtMatrixLayoutCreate(LtLayout** layout, int type, uint64_t rows, uint64_t columns,
                               int64_t line) {
  FAKE_LT_CALL(cublasLtMatrixLayoutCreate);
  if (!type_of(type)) return kLtInvalidValue;
  *layout = call.state.make<LtLayout>();
  (*layout)->type = type;
  (*layout)->rows = static_cast<int64_t>(rows);
  (*layout)->columns = static_cast<int64_t>(columns);
  (*layout)->line = line;
  return kOk;
}
int cublasLtMatrixLayoutSetAttribute(LtLayout* layout, int attribute, const void* value,
                                     size_t bytes) {
  FAKE_LT_CALL(cublasLtMatrixLayoutSetAttribute);
  FAKE_LT_CHECK(layout);
  std::map<int, int64_t> number;
  if (bytes != (attribute == kLtStep ? 8 : 4) || set_number(number, attribute, value, bytes) != kOk)
    return kLtInvalidValue;
  if (attribute == kLtBatch)
    layout->batch = number[attribute];
  else if (attribute == kLtStep)
    layout->step = number[attribute];
  else
    return kLtInvalidValue;
  return kOk;
}
int cublasLtMatmulPreferenceCreate(LtPreference** preference) {
  FAKE_LT_CALL(cublasLtMatmulPreferenceCreate);
  *preference = call.state.make<LtPreference>();
  return kOk;
}
int cublasLtMatmulPreferenceSetAttribute(LtPreference* preference, int attribute, const void* value,
                                         size_t bytes) {
  FAKE_LT_CALL(cublasLtMatmulPreferenceSetAttribute);
  FAKE_LT_CHECK(preference);
  if (bytes != (attribute == kLtMostWorkspace ? 8 : 4)) return kLtInvalidValue;
  return set_number(preference->numbers, attribute, value, bytes);
}
FAKE_LT_DESTROY(cublasLtDestroy, LtContext)
FAKE_LT_DESTROY(cublasLtMatmulDescDestroy, LtDesc)
FAKE_LT_DESTROY(cublasLtMatrixLayoutDestroy, LtLayout)
FAKE_LT_DESTROY(cublasLtMatmulPreferenceDestroy, LtPreference)

int cublasLtMatmulAlgoGetHeuristic(LtContext* context, LtDesc* description, LtLayout* a,
                                   LtLayout* b, LtLayout* c, LtLayout* d, LtPreference* preference,
                                   int wanted, LtHeuristic* found, int* count) {
  FAKE_LT_CALL(cublasLtMatmulAlgoGetHeuristic);
  FAKE_LT_CHECK(context);
  FAKE_LT_CHECK(description);
  FAKE_LT_CHECK(preference);
  for (LtLayout* layout : {a, b, c, d}) FAKE_LT_CHECK(layout);
  if (wanted < 1) return kLtInvalidValue;
  *count = 0;
  for (const Offer& offer : kOffers) {
    if (*count == wanted || (*count == 1 && !has_offers())) break;
    LtHeuristic made;
    if (!make_offer(offer, preference->numbers, *d, made)) continue;
    found[(*count)++] = made;
  }
  return kOk;
}
int cublasLtMatmulAlgoInit(LtContext*, int, int, int, int, int, int, int id,
                           LtAlgorithm* algorithm) {
  FAKE_LT_CALL(cublasLtMatmulAlgoInit);
  *algorithm = {};
  algorithm->data[kMagic] = kIsOurs;
  set_number(*algorithm, kLtAlgorithmId, static_cast<uint64_t>(id) & 255);
  return kOk;
}
int cublasLtMatmulAlgoConfigSetAttribute(LtAlgorithm* algorithm, int attribute, const void* value,
                                         size_t bytes) {
  FAKE_LT_CALL(cublasLtMatmulAlgoConfigSetAttribute);
  if (bytes != bytes_of_config(attribute)) return kLtInvalidValue;
  uint64_t number = 0;
  std::memcpy(&number, value, bytes);
  set_number(*algorithm, attribute, number & 255);
  return kOk;
}
int cublasLtMatmulAlgoConfigGetAttribute(const LtAlgorithm* algorithm, int attribute, void* value,
                                         size_t bytes, size_t* written) {
  FAKE_LT_CALL(cublasLtMatmulAlgoConfigGetAttribute);
  if (bytes != bytes_of_config(attribute)) return kLtInvalidValue;
  const uint64_t number = number_of(*algorithm, attribute);
  std::memcpy(value, &number, bytes);
  if (written) *written = bytes;
  return kOk;
}
int cublasLtMatmulAlgoCheck(LtContext*, LtDesc*, LtLayout*, LtLayout*, LtLayout*, LtLayout* d,
                            const LtAlgorithm* algorithm, LtHeuristic* found) {
  FAKE_LT_CALL(cublasLtMatmulAlgoCheck);
  *found = {};
  found->algorithm = *algorithm;
  if (!has_offers()) return kOk;
  FAKE_LT_CHECK(d);
  if (!is_known(*algorithm)) return kLtNotSupported;
  found->workspace = workspace_of(*algorithm, *d);
  found->algorithm.data[kOfWorkspace] = found->workspace;
  return kOk;
}

int cublasLtMatmul(LtContext* context, LtDesc* description, const void* alpha, const void* a,
                   LtLayout* a_is, const void* b, LtLayout* b_is, const void* beta, const void* c,
                   LtLayout* c_is, void* d, LtLayout* d_is, const LtAlgorithm* algorithm,
                   void* workspace, size_t bytes, CuStream* stream) {
  FAKE_LT_CALL(cublasLtMatmul);
  FAKE_LT_CHECK(context);
  FAKE_LT_CHECK(description);
  for (LtLayout* layout : {a_is, b_is, c_is, d_is}) FAKE_LT_CHECK(layout);
  const bool is_f64 = description->compute == kLtComputeF64;
  const auto number = [&](const void* at) {
    return load_number(is_f64 ? DType::kF64 : DType::kF32, static_cast<const char*>(at));
  };
  Product p{*type_of(a_is->type), *type_of(d_is->type),
            description->number(kLtTransA) == kLtTransposed,
            description->number(kLtTransB) == kLtTransposed, is_f64};
  p.m = d_is->rows;
  p.n = d_is->columns;
  p.k = p.trans_a ? a_is->rows : a_is->columns;
  p.batch = d_is->batch;
  p.a = *a_is, p.b = *b_is, p.c = *c_is, p.d = *d_is;
  p.described = *description;
  p.alpha = number(alpha), p.beta = number(beta);
  const auto address = [](const void* at) { return reinterpret_cast<uintptr_t>(at); };
  p.at_a = address(a), p.at_b = address(b), p.at_c = address(c), p.at_d = address(d);
  std::string wrong = misfit(p);
  if (wrong.empty()) wrong = misfit(p, *algorithm, bytes);
  if (!wrong.empty()) {
    call.state.misuse(call.name, wrong);
    return kLtInvalidValue;
  }
  if (has_offers() && offer_of(*algorithm).kind == Offer::kFails) return kLtNotSupported;
  State& state = call.state;
  if (loads_late()) load(state, p, *stream->context->root());
  const int queued =
      state.queue(call.name, stream, [&state, p, bytes, by = *algorithm, at = address(workspace)] {
        return run(state, p, by, at, bytes);
      });
  return queued == kOk ? static_cast<int>(kOk) : kLtExecutionFailed;
}

}  // extern "C"
