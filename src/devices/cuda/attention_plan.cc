// Describes an attention and its gradient as a graph of cuDNN, and runs its plan.
#include "attention_plan.h"

#include <algorithm>
#include <limits>

namespace piper::cuda {
namespace {

using Tensor = DnnGraph::Tensor;
using Dims = DnnGraph::Dims;
constexpr int64_t kSumBytes = 4;     // of an f32
constexpr int64_t kNumberBytes = 8;  // of an i64
constexpr int64_t kAlignment = 256;  // of workspaces

// Numbers the operands of a step, in order.
enum Slot : size_t { kQ, kK, kV, kY, kLse, kTerms, kFirst, kFirstKey, kDy, kDq, kDk, kDv };

Dims transposed(const Dims& dims) { return {dims[0], dims[1], dims[3], dims[2]}; }

class Builder {
 public:
  explicit Builder(const DeviceAttention& attention)
      : a_(attention),
        type_(attention.type == DType::kBF16 ? kDnnBF16 : kDnnF16),
        repeat_(attention.heads / attention.kv_heads) {
    const CudnnSlice slice = cudnn_slice(attention);
    samples_ = slice.samples, kv_heads_ = slice.kv_heads, heads_ = slice.kv_heads * repeat_;
    scores_ = {samples_, heads_, a_.queries, a_.keys};
    rows_ = {samples_, heads_, a_.queries, 1};
  }

  AttentionGraph forward() {
    const Tensor q = queries(kQ, a_.q, a_.width), k = keys(kK, a_.k, a_.width, true);
    const Tensor v = keys(kV, a_.v, a_.v_width, false);
    const Tensor s = seen(with_terms(capped(multiplied(q, k))));
    const Tensor top = graph().reduce(kDnnReduceMax, s, graph().inside(rows_));
    const Tensor e = point(kDnnExp, {point(kDnnSub, {s, top}, scores_)}, scores_);
    const Tensor sum = graph().reduce(kDnnReduceAdd, e, graph().inside(rows_));
    graph().pointwise(kDnnAdd, {top, point(kDnnLog, {sum}, rows_)}, logarithms());
    const Tensor p = graph().pointwise(kDnnDiv, {e, sum}, graph().inside(scores_, type_));
    graph().product(p, v, queries(kY, a_.y, a_.v_width));
    return std::move(made_);
  }

  AttentionGraph backward() {
    const Tensor q = queries(kQ, a_.q, a_.width), k = keys(kK, a_.k, a_.width, true);
    const Tensor v = keys(kV, a_.v, a_.v_width, true);
    const Tensor y = queries(kY, a_.y, a_.v_width), dy = queries(kDy, a_.y, a_.v_width);
    const Tensor sums = sums_of(y, dy), x = multiplied(q, k), s = with_terms(capped(x));
    const Tensor p = point(kDnnExp, {seen(point(kDnnSub, {s, logarithms()}, scores_))}, scores_);
    to_keys(p, dy, kDv, a_.dv, a_.v_width);
    const Tensor dp = graph().product(dy, v, graph().inside(scores_));
    const Tensor ds =
        uncapped(point(kDnnMul, {point(kDnnSub, {dp, sums}, scores_), p}, scores_), x);
    const Tensor dx = point(kDnnMul, {ds, graph().number(factor())}, scores_);
    to_keys(dx, q, kDk, a_.dk, a_.width);
    const Dims plain{samples_, kv_heads_, a_.keys, a_.width};
    const Tensor k_rows =
        graph().view(k, graph().inside(plain, {a_.k.batch, a_.k.head, a_.k.token, 1}, type_));
    graph().product(dx, k_rows, queries(kDq, a_.dq, a_.width));
    return std::move(made_);
  }

 private:
  DnnGraph& graph() { return made_.graph; }

  // Rows of an operand of the step, of `heads` heads for each that a slice counts.
  Tensor memory(Slot operand, const DeviceRows& rows, const Dims& dims, const Dims& steps,
                int64_t heads) {
    const int64_t bytes = info(a_.type).bytes;
    const Tensor made = graph().memory(dims, steps, type_);
    made_.places.push_back(
        {made, operand, rows.first * bytes, rows.batch * bytes, rows.head * heads * bytes});
    return made;
  }
  Tensor queries(Slot operand, const DeviceRows& rows, int64_t width) {
    return memory(operand, rows, {samples_, heads_, a_.queries, width},
                  {rows.batch, rows.head, rows.token, 1}, repeat_);
  }
  Tensor keys(Slot operand, const DeviceRows& rows, int64_t width, bool is_transposed) {
    const Dims dims{samples_, kv_heads_, a_.keys, width};
    const Dims steps{rows.batch, rows.head, rows.token, 1};
    if (is_transposed) return memory(operand, rows, transposed(dims), transposed(steps), 1);
    return memory(operand, rows, dims, steps, 1);
  }
  // Those of a slice are side by side: it has all heads, or one sample.
  Tensor logarithms() {
    const int64_t head = a_.queries * kSumBytes;
    const Tensor made = graph().memory(rows_, {heads_ * a_.queries, a_.queries, 1, 1}, kDnnF32);
    made_.places.push_back({made, kLse, 0, a_.heads * head, repeat_ * head});
    return made;
  }

  Tensor point(DnnNumber mode, std::initializer_list<Tensor> operands, const Dims& dims) {
    return graph().pointwise(mode, operands, graph().inside(dims));
  }

  // ---- Scores ----

  float factor() const {
    return static_cast<float>(a_.softcap > 0 ? a_.scale / a_.softcap : a_.scale);
  }
  Tensor multiplied(Tensor q, Tensor k) {
    const Tensor product = graph().product(q, k, graph().inside(scores_));
    return point(kDnnMul, {product, graph().number(factor())}, scores_);
  }
  Tensor capped(Tensor x) {
    if (a_.softcap == 0) return x;
    const Tensor cap = graph().number(static_cast<float>(a_.softcap));
    return point(kDnnMul, {point(kDnnTanh, {x}, scores_), cap}, scores_);
  }
  Tensor uncapped(Tensor ds, Tensor x) {
    if (a_.softcap == 0) return ds;
    const Tensor cap = graph().number(static_cast<float>(a_.softcap));
    return graph().pointwise_back(kDnnTanhBack, point(kDnnMul, {ds, cap}, scores_), x,
                                  graph().inside(scores_));
  }
  Tensor with_terms(Tensor x) {
    CudnnTerms all = cudnn_terms(a_);
    if (all.bytes == 0) return x;
    const int64_t bytes = info(a_.type).bytes, batch = all.dims[0] > 1 ? all.steps[0] * bytes : 0,
                  head = all.dims[1] > 1 ? all.steps[1] * repeat_ * bytes : 0;
    all.dims[0] = std::min(all.dims[0], samples_), all.dims[1] = std::min(all.dims[1], heads_);
    const Tensor terms = graph().memory(all.dims, all.steps, type_);
    made_.places.push_back({terms, kTerms, 0, batch, head});
    return point(kDnnAdd, {x, terms}, scores_);
  }

  // Returns a number below all others where that of the key is above that of the query.
  Tensor seen(Tensor x) {
    if (!a_.causal) return x;
    Tensor query = number_of(2, x, kFirst, a_.query_stretches);
    if (a_.offset > 0)
      query = whole(kDnnAdd, {query, graph().whole_number(static_cast<int32_t>(a_.offset))});
    const Tensor key = number_of(3, x, kFirstKey, a_.key_stretches);
    const Tensor is_seen =
        graph().pointwise(kDnnAtLeast, {query, key}, graph().inside(scores_, kDnnBool));
    return point(kDnnSelect, {x, graph().number(unseen()), is_seen}, scores_);
  }
  // Returns a finite number where a query may see no key of a tile that is worked on (see
  // attention_terms.cuh).
  float unseen() const {
    const bool may_hide = a_.mask != DeviceAttention::kNoMask || a_.query_stretches > 0;
    return may_hide ? -1e30f : -std::numeric_limits<float>::infinity();
  }

  // Returns the number of each token along an axis. Where `first` are the numbers of the first
  // tokens of equal stretches, i64, their low halves are read.
  Tensor number_of(int64_t axis, Tensor like, Slot first, int64_t stretches) {
    const Tensor token = graph().index(axis, like, graph().inside(scores_, kDnnI32));
    Tensor made = token;
    for (int64_t i = 0; i < stretches; ++i) {
      const Tensor begin = graph().memory({1, 1, 1, 1}, {1, 1, 1, 1}, kDnnI32);
      made_.places.push_back({begin, first, i * kNumberBytes, 0, 0});
      const Tensor number = whole(kDnnAdd, {token, begin});
      if (i == 0) {
        made = number;
        continue;
      }
      const auto from = static_cast<int32_t>(scores_[static_cast<size_t>(axis)] / stretches * i);
      const Tensor later = graph().pointwise(kDnnAtLeast, {token, graph().whole_number(from)},
                                             graph().inside(scores_, kDnnBool));
      made =
          whole(kDnnSelect, {whole(kDnnAdd, {number, graph().whole_number(-from)}), made, later});
    }
    return made;
  }
  Tensor whole(DnnNumber mode, std::initializer_list<Tensor> operands) {
    return graph().pointwise(mode, operands, graph().inside(scores_, kDnnI32));
  }

  // ---- Gradients ----

  // Returns for each query the sum of dy · y: in memory, since two of the kernels that are made
  // read it.
  Tensor sums_of(Tensor y, Tensor dy) {
    const Tensor terms = point(kDnnMul, {dy, y}, {samples_, heads_, a_.queries, a_.v_width});
    const Tensor sum = graph().reduce(kDnnReduceAdd, terms, graph().inside(rows_));
    made_.sums = graph().memory(rows_, {heads_ * a_.queries, a_.queries, 1, 1}, kDnnF32);
    const int64_t bytes = samples_ * heads_ * a_.queries * kSumBytes;
    made_.sums_bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    return graph().pointwise(kDnnMul, {sum, graph().number(1)}, *made_.sums);
  }

  // Adds the gradient of keys or values: xᵀ · rows, summed over the heads that read them.
  void to_keys(Tensor x, Tensor rows, Slot operand, const DeviceRows& to, int64_t width) {
    const int64_t all = a_.queries * a_.keys;
    const Tensor turned = graph().view(
        x, graph().inside(transposed(scores_), {heads_ * all, all, 1, a_.keys}, type_));
    const Tensor made = keys(operand, to, width, false);
    if (repeat_ == 1) {
      graph().product(turned, rows, made);
      return;
    }
    const Tensor each = graph().inside({samples_, heads_, a_.keys, width}, type_);
    graph().reduce(kDnnReduceAdd, graph().product(turned, rows, each), made);
  }

  const DeviceAttention& a_;
  const DnnNumber type_;
  const int64_t repeat_;  // heads of queries for one of keys
  int64_t samples_, kv_heads_, heads_;
  Dims scores_, rows_;
  AttentionGraph made_;
};

// What releases of cuDNN are known not to do right, or at all.
Status check_release(size_t version, const DeviceAttention& attention) {
  if (version < 91100) return fail("cuDNN {} is older than 9.11", version);
  if (version <= 91500 && attention.is_gradient && attention.keys % 128 != 0)
    return fail("cuDNN {} pads keys wrongly that are no multiple of 128", version);
  return ok_status();
}

}  // namespace

AttentionGraph attention_graph(const DeviceAttention& attention) {
  return attention.is_gradient ? Builder(attention).backward() : Builder(attention).forward();
}

Result<AttentionPlan> AttentionPlan::make(const Cudnn& api, const DeviceAttention& attention,
                                          const DnnTarget& target) {
  if (!cudnn_takes(attention)) return fail("not supported: cuDNN has no such attention");
  PIPER_TRY(check_release(api.cudnnGetVersion(), attention));
  AttentionGraph graph = attention_graph(attention);
  PIPER_ASSIGN(DnnPlan plan,
               graph.graph.plan(api, target, cudnn_slice(attention).bytes - graph.sums_bytes));
  return AttentionPlan(api, attention, std::move(graph), std::move(plan));
}

// Returns the addresses of the slice that begins at this sample and this head of keys.
Result<DnnObject> AttentionPlan::bind_slice(std::span<std::byte* const> operands,
                                            std::byte* workspace, int64_t sample,
                                            int64_t head) const {
  std::vector<int64_t> ids;
  std::vector<const void*> addresses;
  const auto add = [&](DnnGraph::Tensor tensor, const void* address) {
    ids.push_back(DnnGraph::id(tensor));
    addresses.push_back(address);
  };
  for (const AttentionGraph::Place& place : graph_.places)
    add(place.tensor,
        operands[place.operand] + place.first + sample * place.batch + head * place.head);
  if (graph_.sums) add(*graph_.sums, workspace);
  for (const auto& [tensor, value] : graph_.graph.numbers()) add(tensor, value);
  return dnn_pack(*api_, ids, addresses, workspace + graph_.sums_bytes);
}

Result<AttentionPlan::Calls> AttentionPlan::bind(std::span<std::byte* const> operands,
                                                 std::byte* workspace) const {
  const CudnnSlice slice = cudnn_slice(attention_);
  Calls calls;
  for (int64_t b = 0; b < attention_.batch; b += slice.samples)
    for (int64_t g = 0; g < attention_.kv_heads; g += slice.kv_heads) {
      PIPER_ASSIGN(DnnObject pack, bind_slice(operands, workspace, b, g));
      calls.push_back(std::move(pack));
    }
  return calls;
}

int AttentionPlan::run(DnnContext* handle, const Calls& calls) const {
  int status = 0;
  for (const DnnObject& pack : calls)
    if (status == 0) status = api_->cudnnBackendExecute(handle, plan_.plan.get(), pack.get());
  return status;
}

}  // namespace piper::cuda
