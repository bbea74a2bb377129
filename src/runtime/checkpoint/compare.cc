// What differs between two checkpoints, in settings and elements. Called by piper-checkpoint.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "boxes.h"
#include "piper/base/counted.h"
#include "piper/runtime/checkpoint_tools.h"

namespace piper {
namespace {

using Json = nlohmann::ordered_json;
constexpr int64_t kDiffBlock = int64_t{1} << 22;  // elements that are compared at a time

// Adds the elements of one block, both as f64.
void add_block(const std::vector<double>& a, const std::vector<double>& b, TensorDiff& diff) {
  for (size_t k = 0; k < a.size(); ++k) {
    if (a[k] == b[k] || (std::isnan(a[k]) && std::isnan(b[k]))) continue;
    ++diff.differing;
    const double apart = std::abs(a[k] - b[k]);
    const double far = std::isnan(apart) ? std::numeric_limits<double>::infinity() : apart;
    diff.largest = std::max(diff.largest, far);
    diff.relative = std::max(
        diff.relative, std::isinf(far) ? far : far / std::max(std::abs(a[k]), std::abs(b[k])));
  }
}

template <class Value>
Result<std::vector<Value>> read_block(const StoredTensor& tensor, const Held& held) {
  std::vector<Value> values(static_cast<size_t>(held.count * info(held.whole.dtype).bytes) /
                            sizeof(Value));
  PIPER_TRY(tensor.read(held, reinterpret_cast<std::byte*>(values.data())));
  return values;
}

// Integers have no distance: those that differ are counted.
Status add_integers(const StoredTensor& a, const StoredTensor& b, const Held& held,
                    TensorDiff& diff) {
  PIPER_ASSIGN(const auto left, read_block<char>(a, held));
  PIPER_ASSIGN(const auto right, read_block<char>(b, held));
  const auto size = static_cast<size_t>(info(held.whole.dtype).bytes);
  for (size_t at = 0; at < left.size(); at += size)
    diff.differing += std::memcmp(&left[at], &right[at], size) != 0;
  return ok_status();
}

Status add_floats(const StoredTensor& a, const StoredTensor& b, Held held, TensorDiff& diff) {
  held.whole.dtype = DType::kF64;
  PIPER_ASSIGN(const auto x, read_block<double>(a, held));
  PIPER_ASSIGN(const auto y, read_block<double>(b, held));
  add_block(x, y, diff);
  return ok_status();
}

// Compares all elements. Equal types differ where bits do, so a zero may differ from a zero.
Result<TensorDiff> compare_elements(const CheckpointReader& a, const CheckpointReader& b,
                                    const std::string& name) {
  const TensorType &left = a.types().at(name), &right = b.types().at(name);
  TensorDiff diff{name};
  diff.elements = num_elements(left.shape);
  PIPER_ASSIGN(const StoredTensor in_a, a.find(name));
  PIPER_ASSIGN(const StoredTensor in_b, b.find(name));
  for (int64_t first = 0; first < diff.elements; first += kDiffBlock) {
    Held held{left, {}, first, std::min(kDiffBlock, diff.elements - first)};
    const int64_t before = diff.differing;
    TensorDiff bits;
    if (left == right) PIPER_TRY(add_integers(in_a, in_b, held, bits));
    if (left == right && bits.differing == 0) continue;
    if (info(left.dtype).is_float) PIPER_TRY(add_floats(in_a, in_b, held, diff));
    diff.differing = std::max(diff.differing, before + bits.differing);
  }
  if (left != right) diff.text = fmt::format("{} and {}", to_string(left), to_string(right));
  return diff;
}

std::string tensor_text(const TensorDiff& diff) {
  std::string text = fmt::format("{}: {}", quote_control(diff.name), diff.text);
  if (diff.elements == 0) return text + "\n";
  if (!diff.text.empty()) text += ", ";
  text += fmt::format("{} of {} elements differ", diff.differing, diff.elements);
  if (diff.largest > 0)
    text += fmt::format(", by {:.3g} at most, relatively by {:.3g}", diff.largest, diff.relative);
  return text + "\n";
}

// JSON has no infinity.
Json finite(double value) { return std::isfinite(value) ? Json(value) : Json("inf"); }

// Compares settings and positions. Safetensors files of other programs have none.
std::vector<SettingChange> changes_between(const Checkpoint& before, const Checkpoint& now) {
  if (before.files.empty() || now.files.empty()) return {};
  std::vector<SettingChange> changes = changed_settings(before.strategy_text, now.strategy_text);
  const auto add = [&](const char* name, std::string left, std::string right) {
    if (left != right) changes.push_back({name, std::move(left), std::move(right)});
  };
  add("step", std::to_string(before.step), std::to_string(now.step));
  add("samples", std::to_string(before.samples), std::to_string(now.samples));
  add("seed", std::to_string(before.data_seed), std::to_string(now.data_seed));
  add("shuffle", before.shuffle ? "on" : "off", now.shuffle ? "on" : "off");
  add("data", before.data_digest, now.data_digest);
  add("model", before.model_digest, now.model_digest);
  return changes;
}

std::string diff_json(const CheckpointDiff& diff) {
  Json all{{"equal", diff.equal}, {"settings", Json::array()}, {"tensors", Json::array()}};
  for (const auto& [setting, before, now] : diff.settings)
    all["settings"].push_back({{"setting", setting}, {"before", before}, {"now", now}});
  for (const TensorDiff& one : diff.tensors)
    all["tensors"].push_back({{"name", one.name},
                              {"what", one.text},
                              {"differing", one.differing},
                              {"elements", one.elements},
                              {"largest", finite(one.largest)},
                              {"relative", finite(one.relative)}});
  return all.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

}  // namespace

Result<CheckpointDiff> diff_checkpoints(const CheckpointReader& a, const CheckpointReader& b) {
  CheckpointDiff diff;
  diff.settings = changes_between(a.about(), b.about());
  for (const auto& [name, type] : a.types()) {
    const auto other = b.types().find(name);
    if (other == b.types().end()) {
      diff.tensors.push_back({name, "only in the first"});
    } else if (type.shape != other->second.shape ||
               (type != other->second &&
                (!info(type.dtype).is_float || !info(other->second.dtype).is_float))) {
      diff.tensors.push_back(
          {name, fmt::format("{} and {}", to_string(type), to_string(other->second))});
    } else {
      PIPER_ASSIGN(TensorDiff one, compare_elements(a, b, name));
      if (one.differing == 0 && one.text.empty())
        ++diff.equal;
      else
        diff.tensors.push_back(std::move(one));
    }
  }
  for (const auto& [name, type] : b.types())
    if (!a.types().contains(name)) diff.tensors.push_back({name, "only in the second"});
  return diff;
}

std::string print_checkpoint_diff(const CheckpointDiff& diff, bool json) {
  if (json) return diff_json(diff);
  std::string text;
  for (const auto& [setting, before, now] : diff.settings)
    text += fmt::format("{}: {} and {}\n", quote_control(setting),
                        before.empty() ? "none" : quote_control(before),
                        now.empty() ? "none" : quote_control(now));
  for (const TensorDiff& one : diff.tensors) text += tensor_text(one);
  return text + fmt::format("{} {} equal bits, {} {}\n", counted(diff.equal, "tensor"),
                            diff.equal == 1 ? "has" : "have", diff.tensors.size(),
                            diff.tensors.size() == 1 ? "differs" : "differ");
}

}  // namespace piper
