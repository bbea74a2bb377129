// Inputs from arrays: rows of a .npy file, or whole batches from a safetensors file.
#include <algorithm>
#include <charconv>

#include "feed.h"

namespace piper {
namespace {

// Views an array as [outer, rows, inner] around the batch dim of an input.
struct Array {
  std::string name;  // for errors
  TensorType type;
  StoredElement element;
  Bytes data;
  int64_t outer = 1, rows = 1, inner = 1;
};

Array make_array(std::string name, StoredArray stored, int batch_dim) {
  const StoredElement element{stored.tensor.type.dtype, stored.width, stored.is_signed};
  Array array{std::move(name), std::move(stored.tensor.type), element,
              std::move(stored.tensor.data)};
  if (batch_dim < 0) {
    array.inner = num_elements(array.type.shape);
    return array;
  }
  for (int d = 0; d < static_cast<int>(array.type.shape.size()); ++d)
    (d < batch_dim    ? array.outer
     : d == batch_dim ? array.rows
                      : array.inner) *= array.type.shape[d];
  return array;
}

Status copy_row(const std::string& path, const Array& array, const InputNeed& need, int64_t row,
                int64_t at, int64_t count, std::byte* to) {
  const int64_t from_bytes = array.element.width, to_bytes = info(need.type.dtype).bytes;
  for (int64_t o = 0; o < array.outer; ++o) {
    const std::byte* from = array.data.data + (o * array.rows + row) * array.inner * from_bytes;
    std::byte* into = to + (o * count + at) * array.inner * to_bytes;
    int64_t wrong = convert(from, array.element, into, need, array.inner);
    if (wrong < 0) wrong = find_outside(into, need, o * array.inner, array.inner);
    if (wrong < 0) continue;
    int64_t value = 0;
    InputNeed any = need;
    any.low = 0, any.high = -1, any.type.dtype = DType::kI64;
    convert(from + wrong * from_bytes, array.element, reinterpret_cast<std::byte*>(&value), any, 1);
    return fail(SourceSpan{path}, "value {} of input '{}' (sample {} of {}) is outside {}", value,
                need.name, row, array.name,
                print_range(need_of_element(need, o * array.inner + wrong)));
  }
  return ok_status();
}

Status check_shape(const SourceSpan& at, const std::string& name, const TensorType& type,
                   const InputNeed& need, bool any_rows) {
  Shape want = need.type.shape;
  const bool comparable = want.size() == type.shape.size();
  if (any_rows && comparable && need.batch_dim >= 0)
    want[need.batch_dim] = type.shape[need.batch_dim];
  if (type.shape != want)
    return fail(at, "{} is {}, but input '{}' is {}", name, to_string(type), need.name,
                to_string(need.type))
        .with_note(any_rows && need.batch_dim >= 0
                       ? fmt::format("help: all sizes have to be the input's, but for that of dim "
                                     "{}, along which the samples lie",
                                     need.batch_dim)
                       : "help: a batch of the file has to be one of the plans: 'global_batch' of "
                         "the strategy says how many samples it has");
  return ok_status();
}

Status check_type(const SourceSpan& at, const std::string& name, const TensorType& type,
                  const InputNeed& need, bool any_rows) {
  PIPER_TRY(check_shape(at, name, type, need, any_rows));
  if (!convertible(type.dtype, need.type.dtype))
    return fail(at, "{} is {}, which cannot become {} for input '{}'", name, info(type.dtype).name,
                info(need.type.dtype).name, need.name)
        .with_note(
            fmt::format("help: integers become integers, and floats f32 or f64; save it as {}",
                        info(need.type.dtype).name));
  return ok_status();
}

class RowFeed final : public Feed {
 public:
  RowFeed(DataFile file, Array array, InputNeed need, RowOrder order)
      : file_(std::move(file)), array_(std::move(array)), need_(std::move(need)), order_(order) {}
  std::optional<Extent> extent() const override {
    if (need_.batch_dim < 0) return std::nullopt;
    return order_.extent();
  }
  Status read(const SampleCut& range, std::byte* to) const override {
    return read_mapped(file_, [&] { return copy(range, to); });
  }

 private:
  Status copy(const SampleCut& range, std::byte* to) const {
    if (need_.batch_dim < 0) return copy_row(file_.path(), array_, need_, 0, 0, 1, to);
    for (int64_t i = 0; i < range.count; ++i) {
      const int64_t row = order_.row(range.sample + i);
      PIPER_TRY(copy_row(file_.path(), array_, need_, row, i, range.count, to));
    }
    return ok_status();
  }

  DataFile file_;
  Array array_;
  InputNeed need_;
  RowOrder order_;
};

class BatchFeed final : public Feed {
 public:
  BatchFeed(DataFile file, std::vector<Array> batches, InputNeed need, int64_t rows)
      : file_(std::move(file)), batches_(std::move(batches)), need_(std::move(need)), rows_(rows) {}
  std::optional<Extent> extent() const override {
    return Extent{static_cast<int64_t>(batches_.size()) * rows_, false};
  }
  Status read(const SampleCut& range, std::byte* to) const override {
    return read_mapped(file_, [&] { return copy(range, to); });
  }

 private:
  Status copy(const SampleCut& range, std::byte* to) const {
    if (need_.batch_dim < 0)
      return copy_row(file_.path(), batch_of(range.sample), need_, 0, 0, 1, to);
    for (int64_t i = 0; i < range.count; ++i) {
      const int64_t sample = range.sample + i, row = sample % rows_;
      PIPER_TRY(copy_row(file_.path(), batch_of(sample), need_, row, i, range.count, to));
    }
    return ok_status();
  }
  const Array& batch_of(int64_t sample) const {
    return batches_[static_cast<size_t>(sample / rows_) % batches_.size()];
  }

  DataFile file_;
  std::vector<Array> batches_;
  InputNeed need_;
  int64_t rows_;  // samples of a batch
};

// "batch/12/ids" -> 12, "ids"
std::optional<std::pair<int64_t, std::string>> parse_batch_name(std::string_view name) {
  if (!name.starts_with("batch/")) return std::nullopt;
  name.remove_prefix(6);
  int64_t number = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
  if (error != std::errc() || number < 0 || end == name.data() + name.size() || *end != '/')
    return std::nullopt;
  if (fmt::format("{}", number) != std::string_view(name.data(), end)) return std::nullopt;
  return std::pair(number, std::string(end + 1, name.data() + name.size()));
}

}  // namespace

Result<std::unique_ptr<Feed>> open_rows(const DataFile& file, const InputNeed& need, int64_t batch,
                                        const DataOptions& options) {
  const SourceSpan at{file.path()};
  PIPER_ASSIGN(StoredArray stored, read_npy(file.path()));
  PIPER_TRY(check_type(at, "the array", stored.tensor.type, need, true));
  Array array = make_array("the array", std::move(stored), need.batch_dim);
  const int64_t rows = need.batch_dim < 0 ? batch : array.rows;
  if (rows < least_samples(options, batch))
    return fail(at, "the array has {} samples; a batch needs {}", rows, batch)
        .with_note("help: give it more samples, or make 'global_batch' of the strategy smaller");
  const RowOrder order(rows, options.shuffle, options.seed);
  return std::unique_ptr<Feed>(std::make_unique<RowFeed>(file, std::move(array), need, order));
}

Result<std::vector<std::unique_ptr<Feed>>> open_batches(const DataFile& file,
                                                        std::span<const InputNeed> needs,
                                                        int64_t batch) {
  const SourceSpan at{file.path()};
  PIPER_ASSIGN(std::vector<StoredArray> arrays, read_safetensors_arrays(file.path()));
  std::vector<std::vector<std::pair<int64_t, StoredArray>>> found(needs.size());
  for (StoredArray& stored : arrays)
    if (const auto parsed = parse_batch_name(stored.tensor.name))
      for (size_t i = 0; i < needs.size(); ++i)
        if (needs[i].name == parsed->second)
          found[i].emplace_back(parsed->first, std::move(stored));
  std::vector<std::unique_ptr<Feed>> feeds(needs.size());
  for (size_t i = 0; i < needs.size(); ++i) {
    if (found[i].empty()) continue;
    std::sort(found[i].begin(), found[i].end(),
              [](const auto& a, const auto& b) { return a.first < b.first; });
    std::vector<Array> batches;
    for (auto& [number, stored] : found[i]) {
      const std::string name = stored.tensor.name;
      const auto next = static_cast<int64_t>(batches.size());
      if (number != next)
        return fail(at, "batch/{}/{} is missing", next, needs[i].name)
            .with_note("help: batches are numbered from 0 on, without a gap");
      PIPER_TRY(check_type(at, name, stored.tensor.type, needs[i], false));
      batches.push_back(make_array(name, std::move(stored), needs[i].batch_dim));
    }
    feeds[i] = std::make_unique<BatchFeed>(file, std::move(batches), needs[i], batch);
  }
  return feeds;
}

}  // namespace piper
