// Boxes of tensors as text, as runs of elements, and which rank writes which. Called by the reader
// and the writer of checkpoints.
#include "boxes.h"

#include <algorithm>
#include <cstring>

#include "piper/plan/trained_parts.h"

namespace piper {
namespace {

using Json = nlohmann::ordered_json;
constexpr int64_t kMostBlocks = 16;
constexpr int64_t kMostElements = INT64_MAX / 8;  // their bytes can be counted

bool take_number(const Json& json, int64_t least, int64_t& to) {
  if (!json.is_number_unsigned() || json.get<uint64_t>() > uint64_t{INT64_MAX}) return false;
  to = json.get<int64_t>();
  return to >= least;
}

// Reads the cuts of a tensor. Each leaves a part of a dim, of at least one element, to the next.
bool take_blocks(const Json& list, Held& held) {
  if (!list.is_array() || std::ssize(list) > kMostBlocks) return false;
  Shape left = held.whole.shape;
  for (const Json& each : list) {
    int64_t dim = 0;
    Held::Block block;
    if (!each.is_array() || each.size() != 4 || !take_number(each[0], 0, dim) ||
        dim >= std::ssize(left) || !take_number(each[1], 1, block.outer) ||
        !take_number(each[2], 1, block.size) || !take_number(each[3], 0, block.index))
      return false;
    block.dim = static_cast<int32_t>(dim);
    int64_t& extent = left[static_cast<size_t>(dim)];
    if (extent % block.outer != 0 || block.size > extent / block.outer) return false;
    if (block.index > extent / block.outer / block.size) return false;
    extent = block.outer * block.size;
    held.blocks.push_back(block);
  }
  const int64_t elements = num_elements(left);
  return held.first <= elements && held.count <= elements - held.first;
}

bool take_held(const Json& json, Held& held) {
  for (const char* key : {"shape", "blocks", "range"})
    if (!json.is_object() || !json.contains(key) || !json[key].is_array()) return false;
  int64_t elements = 1;
  for (const Json& dim : json["shape"]) {
    int64_t size = 0;
    if (!take_number(dim, 0, size) || __builtin_mul_overflow(elements, size, &elements) ||
        elements > kMostElements)
      return false;
    held.whole.shape.push_back(size);
  }
  const Json& range = json["range"];
  return held.whole.shape.size() <= 16 && range.size() == 2 &&
         take_number(range[0], 0, held.first) && take_number(range[1], 0, held.count) &&
         take_blocks(json["blocks"], held);
}

}  // namespace

std::vector<std::string> keys_of(std::span<const OwnPiece> pieces) {
  std::map<std::string_view, int64_t> counts;
  for (const OwnPiece& piece : pieces) counts[piece.name] = 0;
  std::vector<std::string> keys;
  for (const OwnPiece& piece : pieces) {
    int64_t& before = counts[piece.name];
    std::string key = piece.name;
    // A state may be called as a further piece of another one would be.
    for (; before > 0 && counts.contains(key); ++before)
      key = fmt::format("{}#{}", piece.name, before);
    before = std::max<int64_t>(before, 1);
    keys.push_back(std::move(key));
  }
  return keys;
}

std::string print_boxes(std::span<const OwnPiece> pieces) {
  Json json = Json::object();
  const std::vector<std::string> keys = keys_of(pieces);
  for (const OwnPiece& piece : pieces) {
    if (piece.held.is_whole()) continue;
    const std::string& key = keys[static_cast<size_t>(&piece - pieces.data())];
    Json blocks = Json::array();
    for (const auto& [dim, outer, size, index] : piece.held.blocks)
      blocks.push_back({dim, outer, size, index});
    Json entry = {{"shape", piece.held.whole.shape},
                  {"blocks", blocks},
                  {"range", {piece.held.first, piece.held.count}}};
    if (key != piece.name) entry["of"] = piece.name;
    // Its operator[] searches all keys, which differ.
    json.get_ref<Json::object_t&>().Container::emplace_back(key, std::move(entry));
  }
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

Result<std::map<std::string, Box>> parse_boxes(std::string_view text, const std::string& path) {
  const auto bad = [&] {
    return fail(SourceSpan{path}, "its header does not say which parts of tensors it holds")
        .with_code(ExitCode::kStorage);
  };
  const Json json = parse_json(text);
  if (!json.is_object()) return bad();
  std::map<std::string, Box> boxes;
  for (const auto& [key, box] : json.items()) {
    if (!take_held(box, boxes[key].held)) return bad();
    if (box.contains("of") && !box["of"].is_string()) return bad();
    boxes[key].of = box.contains("of") ? box["of"].get<std::string>() : key;
  }
  return boxes;
}

std::vector<ElementRun> runs_of(const Held& held, bool packed) {
  std::vector<ElementRun> runs;
  int64_t at = 0;
  held.for_each_run([&](const Held::Run& run) {
    runs.push_back({run.whole, run.count, packed ? at : run.held});
    at += run.count;
  });
  std::sort(runs.begin(), runs.end(),
            [](const ElementRun& a, const ElementRun& b) { return a.whole < b.whole; });
  return runs;
}

int64_t stored_elements(const Held& held) {
  int64_t elements = 0;
  held.for_each_run([&](const Held::Run& run) { elements += run.count; });
  return elements;
}

std::optional<int64_t> count_elements(const Held& held, int64_t& runs) {
  int64_t elements = 0;
  for (int64_t at = 0; at < held.count;) {
    if (--runs < 0) return std::nullopt;
    const Held::Run run = held.run_at(at);
    if (run.whole >= 0) elements += run.count;
    at += run.count;
  }
  return elements;
}

void pack_held(const Held& held, const std::byte* from, std::byte* to) {
  const int64_t size = info(held.whole.dtype).bytes;
  held.for_each_run([&](const Held::Run& run) {
    std::memmove(to, from + run.held * size, static_cast<size_t>(run.count * size));
    to += run.count * size;
  });
}

// ---- Who writes what ----------------------------------------------------------------------------

namespace {

// Returns the name of a state that no other of its role has: parts of one tensor are told apart.
std::string name_by_itself(const RoleProgram& role, const Tensor& tensor) {
  const std::string name = names_of_state(role, tensor)[0];
  return is_trained_part(tensor) ? prefix_of_part(tensor.cuts[0].outer) + name : name;
}

// Finds, for one rank, the ranks that hold the same of a state.
class Holding {
 public:
  Holding(const PlanSet& set, int64_t rank) : set_(set), rank_(rank) {
    const RoleProgram& own = role_of(rank);
    coordinates_ = coordinates_of(own.mesh, rank);
    for (const RoleProgram& role : set.roles) {
      auto& states = by_name_.emplace_back();
      for (const Buffer& buffer : role.buffers) {
        const Tensor& tensor = role.tensor(buffer);
        if (is_stored(tensor)) states.emplace(name_by_itself(role, tensor), &tensor);
      }
    }
  }

  // Returns the ranks that hold the same of a state as this one does, ascending.
  std::vector<int64_t> holders(const Tensor& tensor, const std::string& name) {
    const RoleProgram& own = role_of(rank_);
    std::vector<int64_t> holders;
    for (const int64_t other : peers(axes_of(own, tensor))) {
      const auto role = static_cast<size_t>(set_.role_of_rank[static_cast<size_t>(other)]);
      const auto found = by_name_[role].find(name);
      if (found != by_name_[role].end() && is_same(tensor, own, *found->second, set_.roles[role]))
        holders.push_back(other);
    }
    return holders;
  }

 private:
  using Axes = std::vector<int32_t>;
  const RoleProgram& role_of(int64_t rank) const {
    return set_.roles[static_cast<size_t>(set_.role_of_rank[static_cast<size_t>(rank)])];
  }
  // Returns the axes along which ranks hold different elements, ascending.
  static Axes axes_of(const RoleProgram& role, const Tensor& tensor) {
    Axes axes;
    for (const TensorCut& cut : tensor.cuts)
      if (cut.axis >= 0) axes.push_back(cut.axis);
    if (tensor.part_of >= 0) {
      const auto& group = role.groups[static_cast<size_t>(tensor.part_of)].axes;
      axes.insert(axes.end(), group.begin(), group.end());
    }
    std::sort(axes.begin(), axes.end());
    return axes;
  }
  static bool is_same(const Tensor& a, const RoleProgram& of_a, const Tensor& b,
                      const RoleProgram& of_b) {
    const auto group = [](const RoleProgram& role, const Tensor& tensor) {
      return tensor.part_of < 0 ? Axes() : role.groups[static_cast<size_t>(tensor.part_of)].axes;
    };
    return a.cuts == b.cuts && a.whole_type() == b.whole_type() && a.type == b.type &&
           group(of_a, a) == group(of_b, b);
  }
  // Returns the ranks whose coordinates on these axes are this one's, ascending.
  const std::vector<int64_t>& peers(const Axes& axes) {
    const auto [found, is_new] = peers_.try_emplace(axes);
    if (!is_new) return found->second;
    const Mesh& mesh = role_of(rank_).mesh;
    for (int64_t other = 0; other < set_.world(); ++other) {
      const std::vector<int64_t> there = coordinates_of(mesh, other);
      if (std::all_of(axes.begin(), axes.end(), [&](int32_t axis) {
            return there[static_cast<size_t>(axis)] == coordinates_[static_cast<size_t>(axis)];
          }))
        found->second.push_back(other);
    }
    return found->second;
  }

  const PlanSet& set_;
  const int64_t rank_;
  std::vector<int64_t> coordinates_;
  std::vector<std::map<std::string, const Tensor*>> by_name_;  // by role
  std::map<Axes, std::vector<int64_t>> peers_;
};

}  // namespace

std::vector<bool> states_to_write(const PlanSet& set, int64_t rank) {
  const RoleProgram& role =
      set.roles[static_cast<size_t>(set.role_of_rank[static_cast<size_t>(rank)])];
  struct Stored {
    int64_t bytes = 0;
    std::string name;
    size_t buffer = 0;
  };
  Holding holding(set, rank);
  std::map<std::vector<int64_t>, std::vector<Stored>> by_holders;
  for (size_t b = 0; b < role.buffers.size(); ++b) {
    const Tensor& tensor = role.tensor(role.buffers[b]);
    if (!is_stored(tensor)) continue;
    std::string name = name_by_itself(role, tensor);
    std::vector<int64_t> holders = holding.holders(tensor, name);
    by_holders[std::move(holders)].push_back({tensor.type.bytes(), std::move(name), b});
  }
  std::vector<bool> writes(role.buffers.size(), false);
  // The holder with the fewest bytes takes the largest state that is left. All holders know all
  // states that they share, so they come to the same result.
  for (auto& [holders, states] : by_holders) {
    std::sort(states.begin(), states.end(), [](const Stored& a, const Stored& b) {
      return std::tie(b.bytes, a.name) < std::tie(a.bytes, b.name);
    });
    std::vector<int64_t> bytes(holders.size(), 0);
    for (const Stored& state : states) {
      const auto least = std::min_element(bytes.begin(), bytes.end());
      *least += state.bytes;
      writes[state.buffer] = holders[static_cast<size_t>(least - bytes.begin())] == rank;
    }
  }
  return writes;
}

}  // namespace piper
