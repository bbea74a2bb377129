// Reads cluster files: devices, links, nodes and the levels above them.
#include <algorithm>

#include "piper/base/library.h"
#include "piper/base/maps.h"
#include "piper/devices/registry.h"
#include "piper/inspect/cluster.h"
#include "piper/ir/ops.h"
#include "quantity.h"

namespace piper {
namespace {

using cluster::Quantity;
using cluster::read_quantity;
using yaml::check_keys;
using yaml::read_count;

// Says what a key of a device or link holds.
template <class T>
struct QuantityKey {
  const char* key;
  double T::*member;
  Quantity what;
  enum Needs : uint8_t { kNeeded, kMayLack } needs = kMayLack;
  bool positive = false;
};
using DeviceKey = QuantityKey<ClusterDevice>;
constexpr DeviceKey kDeviceKeys[] = {
    {"memory", &ClusterDevice::memory, Quantity::kBytes, DeviceKey::kNeeded, true},
    {"bandwidth", &ClusterDevice::bandwidth, Quantity::kRate, DeviceKey::kNeeded, true},
    {"reserve", &ClusterDevice::reserve, Quantity::kBytes},
    {"vector", &ClusterDevice::vector, Quantity::kFlops},
    {"cache", &ClusterDevice::cache, Quantity::kBytes},
    {"cache_bandwidth", &ClusterDevice::cache_bandwidth, Quantity::kRate},
    {"host_bandwidth", &ClusterDevice::host_bandwidth, Quantity::kRate},
    {"launch", &ClusterDevice::launch, Quantity::kTime},
    {"issue", &ClusterDevice::issue, Quantity::kTime},
    {"between_steps", &ClusterDevice::between_steps, Quantity::kTime},
    {"per_op", &ClusterDevice::per_op, Quantity::kTime, DeviceKey::kMayLack, true},
    {"processors", &ClusterDevice::processors, Quantity::kNumber, DeviceKey::kMayLack, true},
    {"ramp", &ClusterDevice::ramp, Quantity::kNumber},
    {"score", &ClusterDevice::score, Quantity::kNumber},
    {"attention_ramp", &ClusterDevice::attention_ramp, Quantity::kNumber},
    {"slowed", &ClusterDevice::slowed, Quantity::kShare},
    {"power", &ClusterDevice::power, Quantity::kPower, DeviceKey::kMayLack, true},
    {"power_limit", &ClusterDevice::power_limit, Quantity::kPower, DeviceKey::kMayLack, true},
};
constexpr DeviceKey kEfficiencyKeys[] = {
    {"product", &ClusterDevice::of_products, Quantity::kShare, DeviceKey::kMayLack, true},
    {"attention", &ClusterDevice::of_attention, Quantity::kShare, DeviceKey::kMayLack, true},
    {"attention_grad", &ClusterDevice::of_attention_grad, Quantity::kShare, DeviceKey::kMayLack,
     true},
    {"memory", &ClusterDevice::of_memory, Quantity::kShare, DeviceKey::kMayLack, true},
    {"unaligned", &ClusterDevice::of_unaligned, Quantity::kShare, DeviceKey::kMayLack, true},
};
using LinkKey = QuantityKey<ClusterLink>;
constexpr LinkKey kLinkKeys[] = {
    {"latency", &ClusterLink::latency, Quantity::kTime, LinkKey::kNeeded},
    {"bandwidth", &ClusterLink::bandwidth, Quantity::kRate, LinkKey::kNeeded, true},
};

template <class T, size_t n>
std::vector<std::string> keys_of(const QuantityKey<T> (&keys)[n],
                                 std::vector<std::string> more = {}, bool only_needed = false) {
  for (const QuantityKey<T>& one : keys)
    if (!only_needed || one.needs == QuantityKey<T>::kNeeded) more.emplace_back(one.key);
  return more;
}
template <class T, size_t n>
Status read_quantities(const yaml::Node& map, const QuantityKey<T> (&keys)[n], T& to) {
  for (const QuantityKey<T>& one : keys) {
    const yaml::Entry* const entry = map.find(one.key);
    if (!entry) continue;
    PIPER_ASSIGN(to.*one.member, read_quantity(entry->value, one.key, one.what));
    if (one.positive && to.*one.member <= 0)
      return fail(entry->value.at, "'{}' must be more than 0", one.key);
  }
  return ok_status();
}

Result<std::string> read_text(const yaml::Node& node, std::string_view key) {
  PIPER_TRY(expect(node, yaml::Node::Kind::kScalar, fmt::format("'{}'", key), "a name"));
  return node.text;
}
class ClusterReader {
  using Node = yaml::Node;

 public:
  Result<Cluster> read(const std::string& path, const Node& root) {
    out_.path = path;
    const std::vector<std::string> needed = {"piper_cluster", "devices", "links", "nodes"};
    std::vector<std::string> known = needed;
    known.emplace_back("levels");
    if (root.is(Node::Kind::kNull)) return fail(SourceSpan{path}, "the file is empty");
    PIPER_TRY(check_keys(root, "a cluster", known, needed));
    const Node& version = root.find("piper_cluster")->value;
    if (version.text != "1")
      return fail(version.at, "version {} of cluster files is not supported",
                  yaml::shown(version.text))
          .with_note("help: this program reads version 1");
    PIPER_TRY(read_devices(root.find("devices")->value));
    PIPER_TRY(read_links(root.find("links")->value));
    PIPER_TRY(read_nodes(root.find("nodes")->value));
    if (const yaml::Entry* const levels = root.find("levels"))
      PIPER_TRY(read_levels(levels->value));
    PIPER_TRY(check_connected());
    return std::move(out_);
  }

 private:
  // ---- Devices ----
  Status read_devices(const Node& map) {
    PIPER_TRY(expect(map, Node::Kind::kMap, "'devices'", "a map of kinds of devices"));
    for (const yaml::Entry& entry : map.entries) {
      PIPER_ASSIGN(out_.devices.emplace_back(), read_device(entry.value, entry.key.text));
      out_.devices.back().at = entry.key.at;
      names_.push_back(entry.key.text);
    }
    return ok_status();
  }
  static Result<ClusterDevice> read_device(const Node& map, const std::string& name) {
    const std::vector<std::string> more = {"target", "flops",    "tiles", "efficiency",
                                           "helper", "composed", "copies"};
    PIPER_TRY(check_keys(map, fmt::format("the device '{}'", name), keys_of(kDeviceKeys, more),
                         keys_of(kDeviceKeys, {"target", "flops"}, true)));
    ClusterDevice device;
    device.name = name;
    PIPER_TRY(read_quantities(map, kDeviceKeys, device));
    const Node& target = map.find("target")->value;
    PIPER_ASSIGN(device.target, read_text(target, "target"));
    auto kind = find_target(device.target);
    if (!kind) {
      kind.error().at = target.at;
      return std::move(kind).error();
    }
    device.has_library = (*kind)->sums_fast;
    PIPER_TRY(read_flops(map.find("flops")->value, device));
    if (const yaml::Entry* const shares = map.find("efficiency")) {
      PIPER_TRY(check_keys(shares->value, "'efficiency'", keys_of(kEfficiencyKeys), {}));
      PIPER_TRY(read_quantities(shares->value, kEfficiencyKeys, device));
    }
    if (const yaml::Entry* const tiles = map.find("tiles"))
      PIPER_TRY(read_tiles(tiles->value, device));
    if (const yaml::Entry* const composed = map.find("composed"))
      PIPER_TRY(read_composed(*composed, device));
    if (const yaml::Entry* const copies = map.find("copies"))
      PIPER_TRY(read_copies(copies->value, device.copies));
    if (const yaml::Entry* const helper = map.find("helper")) {
      if (helper->value.text != "true" && helper->value.text != "false")
        return fail(helper->value.at, "'helper' must be true or false, not {}",
                    yaml::found(helper->value));
      device.helper = helper->value.text == "true";
    }
    if ((device.cache > 0) != (device.cache_bandwidth > 0))
      return fail(map.at, "the device '{}' needs both of 'cache' and 'cache_bandwidth', or neither",
                  name);
    if (const yaml::Entry* const limit = map.find("power_limit");
        limit && device.power_limit > device.power)
      return device.power > 0
                 ? fail(limit->value.at, "'power_limit' must be at most 'power', {} W, not {}",
                        device.power, yaml::found(limit->value))
                 : fail(limit->value.at, "'power_limit' needs 'power', that of the stated 'flops'");
    if (device.slowed >= 1) return fail(map.find("slowed")->value.at, "'slowed' must be below 1");
    if (device.reserve >= device.memory)
      return fail(map.find("reserve")->value.at, "'reserve' leaves nothing of the memory");
    return device;
  }
  static Status read_flops(const Node& map, ClusterDevice& device) {
    PIPER_TRY(expect(map, Node::Kind::kMap, "'flops'", "a map such as {bf16: 989 TFLOPS}"));
    std::vector<std::string> types;
    for (int d = 0; d < kNumDTypes; ++d)
      if (info(static_cast<DType>(d)).is_float)
        types.emplace_back(info(static_cast<DType>(d)).name);
    PIPER_TRY(check_keys(map, "'flops'", types, {}));
    for (const yaml::Entry& entry : map.entries) {
      double& rate = device.flops[static_cast<size_t>(*parse_dtype(entry.key.text))];
      PIPER_ASSIGN(rate, read_quantity(entry.value, entry.key.text, Quantity::kFlops));
      if (rate <= 0) return fail(entry.value.at, "'{}' must be more than 0", entry.key.text);
    }
    return ok_status();
  }
  static Status read_composed(const yaml::Entry& given, ClusterDevice& device) {
    PIPER_TRY(expect(given.value, Node::Kind::kMap, "'composed'", "a map such as {RmsNorm: 4}"));
    if (device.per_op == 0)
      return fail(given.key.at, "'composed' needs 'per_op': without it ops share passes");
    std::vector<std::string> names;
    for (const OpDef* op : all_ops()) names.emplace_back(op->name);
    for (const yaml::Entry& entry : given.value.entries) {
      if (!find_op(entry.key.text))
        return fail(entry.key.at, "there is no op {}{}", yaml::shown(entry.key.text),
                    did_you_mean(entry.key.text, names));
      PIPER_ASSIGN(device.composed[entry.key.text], read_count(entry.value, entry.key.text));
    }
    return ok_status();
  }
  static Status read_copies(const Node& given, ClusterDevice::Copies& copies) {
    PIPER_TRY(expect(given, Node::Kind::kList, "'copies'", "a list such as [gathered, reduced]"));
    const std::map<std::string, bool ClusterDevice::Copies::*, std::less<>> words = {
        {"gathered", &ClusterDevice::Copies::gathered},
        {"reduced", &ClusterDevice::Copies::reduced},
        {"strided", &ClusterDevice::Copies::strided}};
    std::vector<std::string> names;
    for (const auto& [name, member] : words) names.push_back(name);
    for (const Node& word : given.items) {
      const auto known = words.find(word.text);
      if (known == words.end())
        return fail(word.at, "'copies' has no {}{}; there are {}", yaml::found(word),
                    did_you_mean(word.text, names), list_with_and(names));
      copies.*known->second = true;
    }
    return ok_status();
  }
  // "128x256"
  static Result<ClusterDevice::Tile> read_sides(const Node& key) {
    ClusterDevice::Tile tile;
    const std::vector<std::string> sides = split_text(key.text, 'x');
    Node side = key;
    for (size_t s = 0; s < sides.size() && sides.size() == 2; ++s) {
      side.text = sides[s];
      const Result<int64_t> count = read_count(side, "tiles");
      (s == 0 ? tile.rows : tile.columns) = count ? *count : 0;
    }
    if (sides.size() == 2 && std::min(tile.rows, tile.columns) >= 1) return tile;
    return fail(key.at, "a tile must be ROWSxCOLUMNS, such as 128x256, not {}",
                yaml::shown(key.text));
  }
  // "{128x256: 0.8, …}"
  static Status read_tiles(const Node& map, ClusterDevice& device) {
    PIPER_TRY(expect(map, Node::Kind::kMap, "'tiles'", "a map such as {128x256: 1, 64x64: 0.5}"));
    device.tiles.clear();
    for (const yaml::Entry& entry : map.entries) {
      PIPER_ASSIGN(ClusterDevice::Tile tile, read_sides(entry.key));
      PIPER_ASSIGN(tile.share, read_quantity(entry.value, entry.key.text, Quantity::kShare));
      if (tile.share <= 0) return fail(entry.value.at, "the share of a tile must be more than 0");
      device.tiles.push_back(tile);
    }
    return device.tiles.empty() ? fail(map.at, "'tiles' must have a tile") : ok_status();
  }

  // ---- Links, nodes, levels ----
  Status read_links(const Node& map) {
    PIPER_TRY(expect(map, Node::Kind::kMap, "'links'", "a map of links"));
    for (const yaml::Entry& entry : map.entries) {
      ClusterLink& link = out_.links.emplace_back();
      link.name = entry.key.text;
      link.at = entry.key.at;
      link_names_.push_back(link.name);
      PIPER_TRY(check_keys(entry.value, fmt::format("the link '{}'", link.name), keys_of(kLinkKeys),
                           keys_of(kLinkKeys, {}, true)));
      PIPER_TRY(read_quantities(entry.value, kLinkKeys, link));
    }
    return ok_status();
  }
  static Result<int32_t> index_of_name(const Node& node, std::string_view key,
                                       const std::vector<std::string>& names) {
    PIPER_ASSIGN(const std::string name, read_text(node, key));
    const auto found = std::find(names.begin(), names.end(), name);
    if (found == names.end())
      return fail(node.at, "there is no {} {}{}; there are {}", key, yaml::shown(name),
                  did_you_mean(name, names), names.empty() ? "none" : list_with_and(names));
    return static_cast<int32_t>(found - names.begin());
  }
  Status read_nodes(const Node& given) {
    out_.at = given.at;
    const bool is_list = given.is(Node::Kind::kList);
    for (const Node& node : is_list ? std::span(given.items) : std::span(&given, 1)) {
      PIPER_TRY(check_keys(node, "a range of nodes", {"count", "device", "devices", "link"},
                           {"device", "devices", "link"}));
      Cluster::Nodes& range = out_.nodes.emplace_back();
      if (const yaml::Entry* const count = node.find("count")) {
        PIPER_ASSIGN(range.count, read_count(count->value, "count"));
      }
      PIPER_ASSIGN(range.devices, read_count(node.find("devices")->value, "devices"));
      PIPER_ASSIGN(range.device, index_of_name(node.find("device")->value, "device", names_));
      PIPER_ASSIGN(range.link, index_of_name(node.find("link")->value, "link", link_names_));
    }
    if (out_.nodes.empty()) return fail(given.at, "'nodes' must have a range of nodes");
    if (out_.size() > kMostDevices)
      return fail(given.at, "{} devices are more than {}", out_.size(), kMostDevices);
    return ok_status();
  }
  int64_t all_nodes() const {
    int64_t all = 0;
    for (const Cluster::Nodes& range : out_.nodes) all += range.count;
    return all;
  }
  Status read_levels(const Node& list) {
    PIPER_TRY(expect(list, Node::Kind::kList, "'levels'", "a list, from the smallest level"));
    int64_t below = 1;
    for (const Node& node : list.items) {
      PIPER_TRY(check_keys(node, "a level", {"name", "nodes", "link"}, {"name", "link"}));
      Cluster::Level& level = out_.levels.emplace_back();
      PIPER_ASSIGN(level.name, read_text(node.find("name")->value, "name"));
      PIPER_ASSIGN(level.link, index_of_name(node.find("link")->value, "link", link_names_));
      const yaml::Entry* const nodes = node.find("nodes");
      const bool is_last = &node == &list.items.back();
      if (!nodes && !is_last)
        return fail(node.at, "only the last level may lack 'nodes': it has all");
      level.nodes = all_nodes();
      if (nodes) {
        PIPER_ASSIGN(level.nodes, read_count(nodes->value, "nodes"));
      }
      if (level.nodes % below != 0 && nodes)
        return fail(nodes->value.at, "a level of {} nodes cannot be made of levels of {} below it",
                    level.nodes, below);
      below = level.nodes;
      levels_at_ = list.at;
    }
    return ok_status();
  }
  Status check_connected() {
    const int64_t joined = out_.levels.empty() ? 1 : out_.levels.back().nodes;
    if (joined >= all_nodes()) return ok_status();
    return fail(out_.levels.empty() ? out_.at : levels_at_,
                "the links join {} of {} nodes: devices of others cannot reach these", joined,
                all_nodes())
        .with_note("help: the last of 'levels' has all nodes: - {name: cluster, link: LINK}");
  }

  static constexpr int64_t kMostDevices = int64_t{1} << 24;
  Cluster out_;
  std::vector<std::string> names_, link_names_;
  SourceSpan levels_at_;
};

}  // namespace

int64_t Cluster::size() const {
  int64_t all = 0;
  for (const Nodes& range : nodes) all += range.count * range.devices;
  return all;
}
const ClusterDevice& Cluster::device_of(int64_t rank) const {
  for (const Nodes& range : nodes) {
    if (rank < range.count * range.devices) return devices[static_cast<size_t>(range.device)];
    rank -= range.count * range.devices;
  }
  return devices[static_cast<size_t>(nodes.back().device)];
}

Result<Cluster> read_cluster(const std::string& name, const std::vector<std::string>& folders) {
  constexpr int64_t kMostBytes = int64_t{1} << 20;
  const bool is_name = is_library_name(name);
  PIPER_ASSIGN(const std::string path,
               is_name ? find_in_library(name, folders, {}, LibraryPart::kClusters) : name);
  Result<std::string> text = read_text_file(path, kMostBytes);
  if (!text)
    return with_library_names(std::move(text).error(), path, folders, LibraryPart::kClusters);
  PIPER_ASSIGN(const yaml::Node root, yaml::parse_yaml(path, *text));
  return ClusterReader().read(path, root);
}

}  // namespace piper
