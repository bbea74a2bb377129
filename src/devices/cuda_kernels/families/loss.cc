// Cross-entropy over the last dim, and the count of labels.
#include <algorithm>

#include "families.h"

namespace piper::cuda_kernels {
namespace {

constexpr int32_t kMostOfBlock = 1024, kLossThreads = 256, kMostOfRow = 512;

struct Rows {
  int64_t count = 0, classes = 0, whole = 0;
  int64_t pitch = 0;  // elements from row to row of logits and their gradients
  std::string ignore;
  std::string_view type, computed;  // of logits; of all else
  int32_t threads = 0;              // of a block, which has a row
  int64_t bytes = 0;                // of the aligned runs that a row is of
};
Rows rows_of(const Use& use, const Emitter& emit) {
  Rows rows{num_elements(use.in(1)), use.in(0).back()};
  rows.pitch = pitch_of(emit.operand(0), use.in(0));
  rows.whole = use.attrs.integer("whole", rows.classes);
  rows.ignore = fmt::format("{}LL", use.attrs.integer("ignore_index", -100));
  rows.type = type_name(use.type());
  rows.computed = type_name(compute_type(use.type()));
  constexpr int64_t kWarp = 32, kRun = 16, kRunsOfThread = 4;
  const int64_t lanes = kRun / info(use.type()).bytes;
  const int64_t runs = (rows.classes + 2 * lanes - 2) / lanes;
  rows.threads = static_cast<int32_t>(
      std::min<int64_t>(ceil_div(ceil_div(runs, kRunsOfThread), kWarp) * kWarp, kMostOfRow));
  rows.bytes = runs * kRun;
  return rows;
}

// Launches a block for each row. The text of the call names what follows from the rows.
void take_rows(const Rows& rows, std::string_view call, Emitter& emit,
               std::vector<DeviceOperand> extra = {}, int64_t kept_bytes = 0) {
  const std::string body = fmt::format(
      fmt::runtime(call), fmt::arg("classes", rows.classes), fmt::arg("pitch", rows.pitch),
      fmt::arg("whole", rows.whole), fmt::arg("threads", rows.threads),
      fmt::arg("keeps", kept_bytes > 0), fmt::arg("T", rows.type), fmt::arg("C", rows.computed),
      fmt::arg("ignore", rows.ignore));
  emit.kernel({.family = "expression loss",
               .body = "  " + body,
               .blocks = rows.count,
               .threads = rows.threads,
               .shared_bytes = kept_bytes,
               .extra = std::move(extra)});
}

// Sums a term of each row, which are after the op's operands, if anybody reads the sum.
void sum_terms(int64_t rows, DType dtype, size_t sum, size_t operands, const DeviceOperand& terms,
               Emitter& emit) {
  if (emit.operand(sum).kind == DeviceOperand::kAbsent) return;
  emit.kernel({.family = "expression loss",
               .body = fmt::format(
                   "  losses::sum_terms<{}LL, {}>(p.at<const {}>({}), p.at<{}>({}));", rows,
                   kMostOfBlock, type_name(compute_type(dtype)), operands, type_name(dtype), sum),
               .threads = kMostOfBlock,
               .extra = {terms}});
}

// Returns the position in the text of an input that may be given or not, or null.
std::string optional(const Use& use, size_t input, std::string_view type) {
  return !use.has(input) ? fmt::format("static_cast<const {}*>(nullptr)", type)
                         : fmt::format("p.at<const {}>({})", type, input);
}

Status make_cross_entropy_sum(const Use& use, Emitter& emit) {
  const Rows rows = rows_of(use, emit);
  const DType dtype = use.outputs[0].dtype;
  const DeviceOperand terms = emit.scratch(rows.count * info(dtype).bytes);
  take_rows(rows,
            "losses::cross_entropy_row<{classes}LL, {pitch}LL, {threads}>(p.at<const {T}>(0), "
            "p.at<const int64_t>(1), p.at<{C}>(3), p.at<{C}>(4), {ignore});",
            emit, {terms});
  sum_terms(rows.count, dtype, 2, 4, terms, emit);
  return ok_status();
}

Status make_cross_entropy_terms(const Use& use, Emitter& emit) {
  const Rows rows = rows_of(use, emit);
  const size_t outputs = use.inputs.size();
  take_rows(
      rows,
      "losses::cross_entropy_terms_row<{classes}LL, {pitch}LL, {whole}LL, "
      "{threads}>(p.at<const {T}>(0), "
      "p.at<const int64_t>(1), p.at<const {C}>(2), " +
          optional(use, 3, "int64_t") +
          fmt::format(", p.at<{{C}}>({}), p.at<{{C}}>({}), {{ignore}});", outputs, outputs + 1),
      emit);
  return ok_status();
}

Status make_cross_entropy_of_terms(const Use& use, Emitter& emit) {
  const int64_t count = num_elements(use.in(0));
  const std::string_view type = type_name(use.type());
  const DType computed = compute_type(use.type());
  const DeviceOperand terms = emit.scratch(count * info(computed).bytes);
  emit.kernel({.family = "expression loss",
               .body = fmt::format("  losses::cross_entropy_of_terms<{}LL>(p.at<const {}>(0), "
                                   "p.at<const {}>(1), p.at<const int64_t>(2), p.at<{}>(4), "
                                   "p.at<{}>(5), {}LL);",
                                   count, type, type, type, type_name(computed),
                                   use.attrs.integer("ignore_index", -100)),
               .blocks = ceil_div(count, kLossThreads),
               .threads = kLossThreads,
               .extra = {terms}});
  sum_terms(count, use.type(), 3, 5, terms, emit);
  return ok_status();
}

Status make_cross_entropy_grad(const Use& use, Emitter& emit) {
  // What every device has beside the static shared memory of the kernel.
  constexpr int64_t kMostKept = 99 * 1024 - 512;
  const Rows rows = rows_of(use, emit);
  const bool keeps = !use.has(4) && rows.bytes <= kMostKept;
  take_rows(rows,
            "losses::cross_entropy_grad_row<{classes}LL, {pitch}LL, {whole}LL, {threads}, {keeps}>("
            "p.at<const {T}>(0), p.at<const int64_t>(1), p.at<const {C}>(2), p.at<const {C}>(3), " +
                optional(use, 4, rows.computed) + ", " + optional(use, 5, "int64_t") +
                fmt::format(", p.at<{{T}}>({}), {{ignore}});", use.inputs.size()),
            emit, {}, keeps ? rows.bytes : 0);
  return ok_status();
}

Status make_label_count(const Use& use, Emitter& emit) {
  emit.kernel({.family = "expression loss",
               .body = fmt::format("  losses::count_labels<{}LL, {}>(p.at<const int64_t>(0), "
                                   "p.at<float>(1), {}LL);",
                                   num_elements(use.in(0)), kMostOfBlock,
                                   use.attrs.integer("ignore_index", -100)),
               .threads = kMostOfBlock});
  return ok_status();
}

}  // namespace

std::vector<MakerRow> loss_kernels() {
  return {{"CrossEntropyGrad", make_cross_entropy_grad},
          {"CrossEntropyOfTerms", make_cross_entropy_of_terms},
          {"CrossEntropySum", make_cross_entropy_sum},
          {"CrossEntropyTerms", make_cross_entropy_terms},
          {"LabelCount", make_label_count}};
}

}  // namespace piper::cuda_kernels
