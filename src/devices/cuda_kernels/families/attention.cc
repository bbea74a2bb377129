// Emits kernels or library steps of Attention, AttentionGrad and AttentionMerge.

#include <algorithm>
#include <limits>

#include "families.h"
#include "piper/base/float16.h"
#include "walk.h"

namespace piper::cuda_kernels {
namespace {

using Form = DeviceAttention;
constexpr const char* kTermsFamily = "attention attention_terms";

std::string text_of(const DeviceRows& rows) {
  return fmt::format("{{{}LL, {}LL, {}LL, {}LL}}", rows.first, rows.batch, rows.token, rows.head);
}

std::string text_of(const Form& f) {
  constexpr const char* kMasks[] = {"kNoMask", "kKeeps", "kAdds"};
  std::string text =
      fmt::format("  const attention::Form form{{{}LL, {}LL, {}LL, {}LL, {}LL, {}LL, {}LL,\n",
                  f.batch, f.queries, f.keys, f.heads, f.kv_heads, f.width, f.v_width);
  for (const DeviceRows* rows : {&f.q, &f.k, &f.v, &f.y, &f.dq, &f.dk, &f.dv})
    text += "    " + text_of(*rows) + ",\n";
  text += fmt::format("    {}, {}, {}, {}LL, {}LL, {}LL, attention::{}, {}, {},\n",
                      literal(f.scale, DType::kF64), literal(f.softcap, DType::kF64), f.causal,
                      f.offset, f.query_stretches, f.key_stretches, kMasks[f.mask], f.wide_mask,
                      literal(f.masked_score, DType::kF64));
  return text + fmt::format("    {{{}LL, {}LL, {}LL, {}LL}}, {}LL}};\n", f.mask_step[0],
                            f.mask_step[1], f.mask_step[2], f.mask_step[3], f.all_keys);
}

// Emits the kernels of one use, whose inputs are as attention_of (attention.h) has them.
class Kernels {
 public:
  Kernels(const Use& use, const Form& form, size_t mask, Emitter& emit)
      : use_(use), f_(form), emit_(emit), type_(type_name(form.type)), text_(text_of(form)) {
    if (f_.type == DType::kF64 || std::max(f_.queries, f_.keys) <= 32) tile_ = 32;
    text_ += fmt::format("  const attention::Inputs<{}> in{{{}, {}, {}, {}, {}, {}}};\n", type_,
                         input(0, type_), input(1, type_), input(2, type_), input(mask, "char"),
                         input(mask + 1, "int64_t"), input(mask + 2, "int64_t"));
    by_mma_ = fits_mma();
  }

  void forward() {
    if (by_mma_) {
      launch_by_mma(
          fmt::format("forward<{}>(form, in, {}, {})", mma_types(), output(0), output(1, sums())),
          f_.heads, f_.queries);
      return;
    }
    const int64_t columns = columns_of(f_.v_width);
    const int64_t chunks = std::max<int64_t>(ceil_div(f_.v_width, columns), 1);  // one has the lse
    launch(fmt::format("attention::forward<{}, {}, {}, {}>(form, in, {}LL, {}, {})", type_, tile_,
                       columns, pieces(), chunks, output(0), output(1, sums())),
           f_.batch * f_.heads * tiles(f_.queries) * chunks);
  }

  void backward(const DeviceOperand& delta) {
    extra_ = {delta};
    const std::string sum = at(sums(), use_.inputs.size() + use_.outputs.size());
    launch(fmt::format("attention::dot_adjoints<{}>(form, {}, {}, {})", type_, input(3, type_),
                       input(5, type_), sum),
           ceil_div(f_.batch * f_.heads * f_.queries * kWarp, kThreads));
    text_ += fmt::format("  const attention::Adjoints<{}> a{{{}, {}, {}}};\n", type_,
                         input(5, type_), input(4, sums()), sum);
    const size_t o = use_.outputs.size() > 2 ? 1 : 0;  // dq, dk and dv are outputs, or one is all
    if (by_mma_)
      gradients_by_mma(o);
    else
      gradients(o);
    if (f_.mask_grad) mask_gradient();
  }

  // Makes what a library is given for the mask.
  void terms(const DeviceOperand& to) {
    extra_ = {to};
    const CudnnTerms made = cudnn_terms(f_);
    const int64_t rows = made.dims[0] * made.dims[1] * made.dims[2];
    launch(fmt::format("attention::make_terms<{}>(form, in, {}LL, {}LL, {}LL, {}LL, {})", type_,
                       rows, made.dims[1], made.dims[2], made.steps[2],
                       at(type_, use_.inputs.size() + use_.outputs.size())),
           ceil_div(rows * f_.keys, kThreads), kThreads, kTermsFamily);
  }
  // Clears rows of queries that see no key, which a library has written.
  void clear() {
    launch(fmt::format("attention::clear_unseeing<{}>(form, in, {}, {})", type_, output(0),
                       output(1, sums())),
           ceil_div(f_.batch * f_.heads * f_.queries * kWarp, kThreads), kThreads, kTermsFamily);
  }

 private:
  void gradients(size_t o) {
    int64_t columns = columns_of(f_.width), chunks = ceil_div(f_.width, columns);
    launch(fmt::format("attention::query_gradients<{}, {}, {}, {}>(form, in, a, {}LL, {})", type_,
                       tile_, columns, pieces(), chunks, output(0)),
           f_.batch * f_.heads * tiles(f_.queries) * chunks);
    const int64_t widest = std::max(f_.width, f_.v_width);
    columns = columns_of(widest), chunks = ceil_div(widest, columns);
    launch(fmt::format("attention::key_gradients<{}, {}, {}, {}>(form, in, a, {}LL, {}, {})", type_,
                       tile_, columns, pieces(), chunks, output(o), output(2 * o)),
           f_.batch * f_.kv_heads * tiles(f_.keys) * chunks);
  }
  static std::string at(std::string_view type, size_t operand) {
    return fmt::format("p.at<{}>({})", type, operand);
  }
  std::string input(size_t i, std::string_view type) const {
    return !use_.has(i) ? "nullptr" : at(fmt::format("const {}", type), i);
  }
  std::string output(size_t i, std::string_view type) const {
    return at(type, use_.inputs.size() + i);
  }
  std::string output(size_t i) const { return output(i, type_); }
  std::string_view sums() const { return type_name(compute_type(f_.type)); }
  int64_t tiles(int64_t tokens) const { return ceil_div(tokens, tile_); }

  // Returns how many elements a block has of a width: one tile's side or two.
  int64_t columns_of(int64_t width) const { return width <= tile_ ? tile_ : 2 * tile_; }

  // Returns how many elements of q, k, v and dy are read at once: 16 bytes where all of them allow
  // it.
  int64_t pieces() const {
    const int64_t many = 16 / info(f_.type).bytes;
    bool fits = f_.width % many == 0 && f_.v_width % many == 0;
    const auto check = [&](const DeviceRows& rows, size_t operand) {
      for (const int64_t step : {rows.batch, rows.token, rows.head, rows.first})
        fits = fits && step % many == 0;
      fits = fits && emit_.operand(operand).offset % 16 == 0;
    };
    check(f_.q, 0), check(f_.k, 1), check(f_.v, 2);
    if (f_.is_gradient) check(f_.y, 5);
    return fits ? many : 1;
  }

  void launch(const std::string& call, int64_t blocks, int32_t threads = kThreads) {
    std::string family = f_.is_gradient ? "attention attention_grad" : "attention";
    if (threads == kMmaThreads) family += " mma mma_attention";
    if (threads == kMmaThreads && f_.is_gradient) family += " mma_attention_grad";
    launch(call, blocks, threads, family);
  }
  void launch(const std::string& call, int64_t blocks, int32_t threads, const std::string& family) {
    emit_.kernel({.family = family,
                  .body = fmt::format("{}  {};", text_, call),
                  .blocks = blocks,
                  .threads = threads,
                  .extra = extra_});
  }

  // ---- By tensor cores (mma_attention.cuh) ----
  // Returns whether 16-bit floats are in rows of whole 16 bytes, up to 128 elements wide.
  bool fits_mma() const {
    constexpr int64_t kWidest = 128, kMost = int64_t{1} << 30;
    if (!is_half(f_.type) || std::min(f_.width, f_.v_width) < 1) return false;
    if (std::max(f_.width, f_.v_width) > kWidest) return false;
    return std::max(f_.queries, f_.keys) < kMost && pieces() == 8 && are_written_whole();
  }
  bool are_written_whole() const {
    const auto is_whole = [](const DeviceRows& rows) {
      return rows.batch % 8 == 0 && rows.token % 8 == 0 && rows.head % 8 == 0 &&
             rows.first % 8 == 0;
    };
    bool all =
        f_.is_gradient ? is_whole(f_.dq) && is_whole(f_.dk) && is_whole(f_.dv) : is_whole(f_.y);
    for (size_t o = 0; o < use_.outputs.size(); ++o)  // others than these are of single elements
      all = all && emit_.operand(use_.inputs.size() + o).offset % 16 == 0;
    return all;
  }
  std::string mma_types() const {
    return fmt::format("{}, {}, {}", type_, ceil_div(f_.width, 16) * 16,
                       ceil_div(f_.v_width, 16) * 16);
  }
  void gradients_by_mma(size_t o) {
    launch_by_mma(fmt::format("query_gradients<{}>(form, in, a, {})", mma_types(), output(0)),
                  f_.heads, f_.queries);
    launch_by_mma(fmt::format("key_gradients<{}>(form, in, a, {}, {})", mma_types(), output(o),
                              output(2 * o)),
                  f_.kv_heads, f_.keys);
  }
  void launch_by_mma(const std::string& call, int64_t heads, int64_t tokens) {
    constexpr int64_t kTokens = 64;  // of a tile
    launch("mma::" + call, f_.batch * heads * ceil_div(tokens, kTokens), kMmaThreads);
  }

  void mask_gradient() {
    const auto repeats = [&](size_t d) { return f_.mask_step[d] == 0; };
    const size_t last = use_.outputs.size() - 1;
    if (!repeats(3) && (f_.key_stretches > 0 || f_.all_keys > f_.keys))  // others have none
      emit_.zero(emit_.operand(use_.inputs.size() + last), use_.outputs[last].bytes());
    launch(fmt::format("attention::mask_gradients<{}, {}, {}>(form, in, a, {})", type_, tile_,
                       pieces(), output(last, f_.wide_mask ? sums() : type_)),
           (repeats(0) ? 1 : f_.batch) * (repeats(1) ? 1 : f_.heads) *
               (repeats(2) ? 1 : tiles(f_.queries)) * (repeats(3) ? 1 : tiles(f_.keys)));
  }

  const Use& use_;
  const Form& f_;
  Emitter& emit_;
  const std::string_view type_;
  std::string text_;  // that each kernel begins with
  int64_t tile_ = 64;
  bool by_mma_ = false;
  std::vector<DeviceOperand> extra_;
};

bool library_takes(const Form& form, const std::vector<DeviceOperand>& operands) {
  return cudnn_takes(form) && std::all_of(operands.begin(), operands.end(),
                                          [](const auto& each) { return each.offset % 16 == 0; });
}

// Returns whether queries may see no key.
bool may_hide_all(const Form& form) {
  return form.mask != Form::kNoMask || (form.causal && form.key_stretches > 0);
}

// Emits a step of cuDNN, if it takes it and is there; kernels, if not. Operands: q, k, v, y, lse
// and, of gradients, dy, dq, dk, dv. `mask`: its place among inputs. `least`: of scratch for
// kernels.
Status make(const Use& use, const Form& form, std::vector<DeviceOperand> operands, size_t mask,
            int64_t least, Emitter& emit,
            const std::function<void(const DeviceOperand&)>& kernels) {
  const bool is_taken = library_takes(form, operands);
  const DeviceOperand scratch =
      emit.scratch(is_taken ? std::max(least, cudnn_slice(form).bytes) : least);
  const auto make_kernels = [&] {
    kernels(scratch);
    return ok_status();
  };
  if (!is_taken) return make_kernels();
  const auto input = [&](size_t i, bool is_read) {
    return is_read && use.has(i) ? emit.operand(i) : DeviceOperand{};
  };
  DeviceOperand terms;
  if (const int64_t bytes = cudnn_terms(form).bytes) terms = emit.scratch(bytes);
  operands.insert(operands.begin() + 5,
                  {terms, input(mask + 1, form.causal), input(mask + 2, form.causal)});
  const auto before = [&] {
    if (terms.kind != DeviceOperand::kAbsent) Kernels(use, form, mask, emit).terms(terms);
  };
  const auto after = [&] {
    if (!form.is_gradient && may_hide_all(form)) Kernels(use, form, mask, emit).clear();
  };
  return emit.attention(form, std::move(operands), scratch, {before, after, make_kernels});
}

Status make_attention(const Use& use, Emitter& emit) {
  const Form form = attention_of(use, 3, use.outputs[0]);
  std::vector<DeviceOperand> operands;
  for (const size_t i : {size_t{0}, size_t{1}, size_t{2}, use.inputs.size(), use.inputs.size() + 1})
    operands.push_back(emit.operand(i));
  return make(use, form, std::move(operands), 3, 0, emit,
              [&](const DeviceOperand&) { Kernels(use, form, 3, emit).forward(); });
}

Status make_attention_grad(const Use& use, Emitter& emit) {
  const Form form = attention_grad_of(use);
  std::vector<DeviceOperand> operands;
  for (size_t i = 0; i < 6; ++i) operands.push_back(emit.operand(i));
  for (size_t i = 0; i < 3; ++i)
    operands.push_back(emit.operand(use.inputs.size() + (use.outputs.size() > 2 ? i : 0)));
  const int64_t sums = num_elements(use.in(4)) * info(compute_type(form.type)).bytes;
  return make(use, form, std::move(operands), 6, sums, emit,
              [&](const DeviceOperand& delta) { Kernels(use, form, 6, emit).backward(delta); });
}

Status make_attention_merge(const Use& use, Emitter& emit) {
  const bool tokens_first = use.attrs.integer("tokens_first") != 0;
  const Shape& y = use.in(0);
  const int64_t count = num_elements(use.in(1));
  const double hidden = use.attrs.real("hidden_score", -std::numeric_limits<double>::infinity());
  const std::string_view type = type_name(use.type()), sums = type_name(compute_type(use.type()));
  emit.kernel(
      {.family = "attention",
       .body = fmt::format("  const attention::Rows rows{};\n"
                           "  attention::merge<{}>({}LL, {}LL, {}LL, {}LL, rows, {}, {},\n"
                           "    p.at<const {}>(0), p.at<const {}>(1), p.at<const {}>(2), "
                           "p.at<const {}>(3), p.at<{}>(4), p.at<{}>(5));",
                           text_of(rows_of(y, tokens_first)), type, count, y[tokens_first ? 1 : 2],
                           y[tokens_first ? 2 : 1], y[3],
                           literal(static_cast<double>(use.attrs.integer("parts", 1)), DType::kF64),
                           literal(hidden, DType::kF64), type, sums, type, sums, type, sums),
       .blocks = ceil_div(count * kWarp, kThreads),
       .threads = kThreads});
  return ok_status();
}

}  // namespace

std::vector<MakerRow> attention_kernels() {
  return {{"Attention", make_attention},
          {"AttentionGrad", make_attention_grad},
          {"AttentionMerge", make_attention_merge}};
}

}  // namespace piper::cuda_kernels
