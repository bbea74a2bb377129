// Prints summaries as lines for people.
#include <algorithm>
#include <map>

#include "piper/base/counted.h"
#include "role.h"

namespace piper {
namespace {

// "1" of "stage=1", "1.0" of "stage=1 dir=0".
std::string values_of(const std::string& stage) {
  std::string values;
  for (const std::string& tag : split_text(stage, ' '))
    values += (values.empty() ? "" : ".") + tag.substr(tag.find('=') + 1);
  return quote_control(values);
}

int64_t elements_of(const std::vector<const ParameterSummary*>& parameters) {
  int64_t elements = 0;
  for (const ParameterSummary* parameter : parameters)
    add_bytes(num_elements(parameter->type.shape), elements);
  return elements;
}

// Devices that say the same are named once: "pp=0, pp=1".
std::vector<std::pair<std::string, std::string>> joined(
    std::vector<std::pair<std::string, std::string>> lines) {
  std::vector<std::pair<std::string, std::string>> out;
  for (auto& [where, text] : lines) {
    const auto known =
        std::find_if(out.begin(), out.end(), [&](const auto& line) { return line.second == text; });
    if (known == out.end())
      out.emplace_back(std::move(where), std::move(text));
    else
      known->first += ", " + where;
  }
  return out;
}

std::string item_text(const RoleSummary& role, const OrderedTask& item, bool with_stage) {
  const std::string stage = with_stage ? values_of(role.stages[index_of(item.stage)].name) : "";
  return fmt::format("{}{}{}{}{}", stage, name_of(item.pass), item.micro,
                     item.recomputes ? "*" : "", std::string(index_of(item.ahead), '\''));
}

}  // namespace

std::string human_flops(double flops) {
  if (flops >= 1e12) return fmt::format("{:.3f} TFLOP", flops / 1e12);
  if (flops >= 1e8) return fmt::format("{:.3f} GFLOP", flops / 1e9);
  if (flops >= 1e5) return fmt::format("{:.3f} MFLOP", flops / 1e6);
  if (flops >= 1e3) return fmt::format("{:.3f} kFLOP", flops / 1e3);
  return fmt::format("{:.0f} FLOP", flops);
}

std::string order_text(const RoleSummary& role, size_t first, size_t end, bool with_stages) {
  std::string text;
  for (size_t i = first; i < std::min(end, role.order.size()); ++i) {
    const bool paired = role.order[i].paired && i > 0 && !role.order[i - 1].paired;
    if (i > first) text += paired ? "&" : " ";
    text += item_text(role, role.order[i], with_stages);
  }
  return text;
}

std::string traffic_text(const TrafficSummary& traffic, const std::string& over) {
  return fmt::format("{}{}{} over {}", traffic.fast ? "fast " : "", to_string(traffic.kind),
                     traffic.of.empty() ? "" : " of " + traffic.of, over);
}

std::string setting_text(const std::string& name, const std::string& value) {
  return name == "optimizer" ? value : name + " " + value;
}

namespace {

// Names all parameters; of names that differ in numbers only, as those of layers do, one with '*'
// and how many there are.
std::string names_text(const std::vector<const ParameterSummary*>& parameters) {
  std::vector<std::pair<std::string, int64_t>> counts;
  for (const ParameterSummary* parameter : parameters) {
    std::string name;
    for (const std::string& part : split_text(parameter->name, '.')) {
      const bool is_number = !part.empty() && part.find_first_not_of("0123456789") == part.npos;
      name += (name.empty() ? "" : ".") + (is_number ? "*" : part);
    }
    const auto known = std::find_if(counts.begin(), counts.end(),
                                    [&](const auto& one) { return one.first == name; });
    if (known == counts.end())
      counts.emplace_back(std::move(name), 1);
    else
      ++known->second;
  }
  std::string text;
  for (const auto& [name, count] : counts)
    text += (text.empty() ? "" : ", ") + (count > 1 ? fmt::format("{} x {}", count, name) : name);
  return text;
}

}  // namespace

std::vector<std::string> train_lines(const Summary& summary) {
  std::string shared;
  for (const auto& [name, value] : summary.train)
    shared += (shared.empty() ? "" : ", ") + setting_text(name, value);
  std::vector<std::string> lines{shared};
  std::map<Settings, std::vector<const ParameterSummary*>> groups;
  int64_t frozen = 0, running = 0;
  for (const ParameterSummary& parameter : summary.parameters) {
    if (parameter.kind == ParameterSummary::Kind::kTrained)
      groups[parameter.settings].push_back(&parameter);
    frozen += parameter.kind == ParameterSummary::Kind::kFrozen;
    running += parameter.kind == ParameterSummary::Kind::kRunning;
  }
  for (const auto& [settings, parameters] : groups) {
    std::string line;
    for (const auto& [name, value] : settings)
      line += (line.empty() ? "" : ", ") + setting_text(name, value);
    lines.push_back(fmt::format("{}: {}, {} elements", line,
                                counted(std::ssize(parameters), "parameter"),
                                elements_of(parameters)));
    if (groups.size() > 1) lines.push_back("    " + names_text(parameters));
  }
  std::map<std::string, std::vector<const ParameterSummary*>> layouts;
  for (const ParameterSummary& parameter : summary.parameters)
    if (!parameter.layout.empty()) layouts[parameter.layout].push_back(&parameter);
  for (const auto& [layout, parameters] : layouts)
    lines.push_back(fmt::format("cut along {}: {}, {} elements", layout,
                                counted(std::ssize(parameters), "parameter"),
                                elements_of(parameters)));
  if (frozen > 0) lines.push_back("frozen: " + counted(frozen, "parameter"));
  if (running > 0) lines.push_back("running statistics: " + counted(running, "parameter"));
  return lines;
}

namespace {

// "    stream 'compute': 8 F, 8 B".
std::string stream_line(const StreamSummary& stream) {
  std::string work;
  for (const auto& [what, count] : stream.work)
    work += fmt::format("{}{} {}", work.empty() ? "" : ", ", count,
                        what == "P" ? "packing of weights" : what);
  return fmt::format("    stream '{}': {}", quote_control(stream.name), work);
}

}  // namespace

std::vector<std::string> order_lines(const Summary& summary) {
  std::vector<std::string> lines;
  for (const DeviceSummary& device : summary.devices) {
    const RoleSummary& role = summary.role(device);
    lines.push_back(fmt::format("{}: {}", device.where,
                                order_text(role, 0, role.order.size(), role.stages.size() > 1)));
    for (const StreamSummary& stream : role.streams)
      if (role.streams.size() > 1) lines.push_back(stream_line(stream));
    for (const StageSummary& stage : role.stages)
      if (stage.recomputed > 0)
        lines.push_back(fmt::format(
            "    * recomputes {:.0f} forward ops of {} in {} microbatches", stage.recomputed,
            stage.name.empty() ? "the model" : quote_control(stage.name), stage.runs));
  }
  return lines;
}

std::vector<std::string> memory_lines(const Summary& summary) {
  constexpr const char* kRow =
      "{:<14}{:>6}{:>7}{:>8}{:>12} {:>13}{:>11}{:>11}{:>11}{:>11}{:>11}{:>11}";
  std::vector<std::string> lines{fmt::format(kRow, "device", "ranks", "ops", "params", "elements",
                                             "FLOPs", "weights", "optimizer", "step", "workspace",
                                             "other", "peak")};
  for (const DeviceSummary& device : summary.devices) {
    const RoleSummary& r = summary.role(device);
    int64_t other = r.constant_bytes;
    for (int64_t bytes : {r.packed_bytes, r.transport_bytes, r.scratch_bytes})
      add_bytes(bytes, other);
    lines.push_back(fmt::format(kRow, device.where, device.ranks, r.ops(), r.parameters.size(),
                                r.elements, human_flops(r.flops), human_bytes(r.weight_bytes),
                                human_bytes(r.optimizer_bytes), human_bytes(r.step_bytes),
                                human_bytes(r.workspace_bytes), human_bytes(other),
                                human_bytes(r.peak_bytes)));
  }
  for (const DeviceSummary& device : summary.devices) {
    const RoleSummary& r = summary.role(device);
    if (r.packed_bytes > 0)
      lines.push_back(fmt::format("{:<14}{} of the others are {}", device.where,
                                  human_bytes(r.packed_bytes),
                                  r.target == "cuda" ? "gaps between rows" : "packed weights"));
    if (r.host_bytes > 0)
      lines.push_back(fmt::format("{:<14}{} on the host", device.where, human_bytes(r.host_bytes)));
  }
  return lines;
}

namespace {

// Those that differ in nothing but their streams are one line.
std::vector<TrafficSummary> on_any_stream(const RoleSummary& role) {
  std::vector<TrafficSummary> out;
  for (const TrafficSummary& each : role.traffic) {
    const auto same = std::find_if(out.begin(), out.end(), [&](const TrafficSummary& one) {
      return one.kind == each.kind && one.of == each.of && one.over == each.over &&
             one.dtype == each.dtype && one.fast == each.fast;
    });
    if (same == out.end()) {
      out.push_back(each);
      continue;
    }
    same->messages += each.messages;
    add_bytes(each.bytes, same->bytes);
  }
  return out;
}

}  // namespace

std::vector<std::string> traffic_lines(const Summary& summary) {
  std::vector<std::pair<std::string, std::string>> lines;
  for (const DeviceSummary& device : summary.devices)
    for (const TrafficSummary& traffic : on_any_stream(summary.role(device)))
      lines.emplace_back(
          device.where,
          fmt::format("{}: {} of {}, {} sent{}", traffic_text(traffic, traffic.over),
                      counted(traffic.messages, "message"), info(traffic.dtype).name,
                      human_bytes(traffic.bytes),
                      takes_index(traffic.kind) ? " if as many rows go to each rank" : ""));
  std::vector<std::string> out;
  for (const auto& [where, text] : joined(std::move(lines)))
    out.push_back(fmt::format("{}: a step of a rank has {}", where, text));
  return out;
}

}  // namespace piper
