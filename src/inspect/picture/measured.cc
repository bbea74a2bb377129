// Reads traces of piper-run, and finds for each event the step of the timeline that it is.
#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "piper/inspect/html.h"

namespace piper {
namespace {

using TraceJson = nlohmann::json;

// Walks over a text, and says after each character how far it has got.
class Followed {
 public:
  using iterator_category = std::input_iterator_tag;
  using value_type = char;
  using difference_type = std::ptrdiff_t;
  using pointer = const char*;
  using reference = const char&;

  Followed(const char* at, const char** reached) : at_(at), reached_(reached) {}
  const char& operator*() const { return *at_; }
  Followed& operator++() {
    *reached_ = ++at_;
    return *this;
  }
  bool operator==(const Followed& other) const { return at_ == other.at_; }
  bool operator!=(const Followed& other) const { return at_ != other.at_; }

 private:
  const char* at_;
  const char** reached_;
};

// Holds what an event of a trace says. Numbers that are missing are NaN.
struct Event {
  const char* at = nullptr;  // its place in the text
  std::string name, cat, phase;
  double ts = std::nan(""), dur = std::nan(""), pid = std::nan(""), tid = std::nan("");
  double step = std::nan(""), instruction = std::nan(""), stage = -1, micro = -1, outer_update = -1;
};

// Takes the events out of the parser's hands one by one, so that no file is held as a tree.
class TraceReader : public nlohmann::json_sax<TraceJson> {
 public:
  TraceReader(std::string path, const std::string& text, const Timeline& timeline)
      : path_(std::move(path)), text_(text), timeline_(timeline), reached_(text.data()) {}

  Status run() {
    const char* const end = text_.data() + text_.size();
    nlohmann::json_sax<TraceJson>* const taker = this;
    TraceJson::sax_parse(Followed(text_.data(), &reached_), Followed(end, &reached_), taker);
    if (error_) return *std::move(error_);
    if (!any_list_)
      return fail(SourceSpan{path_}, "has no list 'traceEvents': it is no trace of piper-run")
          .with_note("help: piper-run PLANS --trace FILE.json writes one");
    return ok_status();
  }

  // By rank and training step as the run has counted it, in the order of the file.
  std::map<std::pair<int64_t, int64_t>, std::vector<MeasuredStep>> steps;

 private:
  enum Level : size_t { kRoot = 1, kList = 2, kEvent = 3, kArgs = 4 };

  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t value) override {
    return number(static_cast<double>(value));
  }
  bool number_unsigned(number_unsigned_t value) override {
    return number(static_cast<double>(value));
  }
  bool number_float(number_float_t value, const string_t&) override { return number(value); }
  bool binary(binary_t&) override { return true; }
  bool string(string_t& value) override {
    if (!in_list_ || depth_ != kEvent) return true;
    if (key_ == "name") event_.name = std::move(value);
    if (key_ == "cat") event_.cat = std::move(value);
    if (key_ == "ph") event_.phase = std::move(value);
    return true;
  }
  bool key(string_t& value) override {
    // Of nested objects only an event's "args" says something.
    if (depth_ == kRoot || (in_list_ && depth_ == kEvent)) key_ = value;
    if (depth_ == kArgs) inner_ = std::move(value);
    return true;
  }
  bool number(double value) {
    if (in_list_ && depth_ == kEvent)
      for (auto [name, field] : {std::pair{"ts", &Event::ts},
                                 {"dur", &Event::dur},
                                 {"pid", &Event::pid},
                                 {"tid", &Event::tid}})
        if (key_ == name) event_.*field = value;
    if (in_list_ && depth_ == kArgs && key_ == "args")
      for (auto [name, field] : {std::pair{"step", &Event::step},
                                 {"instruction", &Event::instruction},
                                 {"outer_update", &Event::outer_update},
                                 {"stage", &Event::stage},
                                 {"micro", &Event::micro}})
        if (inner_ == name) event_.*field = value;
    return true;
  }
  bool start_object(std::size_t) override {
    if (in_list_ && depth_ == kList) (event_ = Event()).at = reached_ - 1;
    ++depth_;
    return true;
  }
  bool end_object() override {
    --depth_;
    return !in_list_ || depth_ != kList || take();
  }
  bool start_array(std::size_t) override {
    if (depth_ == kRoot && key_ == "traceEvents") in_list_ = any_list_ = true;
    ++depth_;
    return true;
  }
  bool end_array() override {
    --depth_;
    if (depth_ == kRoot) in_list_ = false;
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const TraceJson::exception&) override {
    error_ = fail(place(std::max(text_.data(), reached_ - 1)), "is not JSON from here on");
    return false;
  }

  SourceSpan place(const char* at) const {
    const char* line = text_.data();
    int number = 1;
    for (const char* c = line; c < at; ++c)
      if (*c == '\n') {
        ++number;
        line = c + 1;
      }
    return {path_, number, static_cast<int>(std::max<std::ptrdiff_t>(at - line, 0)) + 1};
  }
  template <class... Args>
  bool refuse(fmt::format_string<Args...> text, Args&&... args) {
    error_ = fail(place(event_.at), text, std::forward<Args>(args)...);
    return false;
  }
  // Refuses a number that is not whole or not in [low, high].
  bool is_whole(const char* name, double value, int64_t low, int64_t high, const char* of) {
    if (value >= static_cast<double>(low) && value <= static_cast<double>(high) &&
        value == std::floor(value))
      return true;
    return refuse("the event's '{}' is {}; expected {} from {} to {}", name,
                  std::isnan(value) ? "missing" : fmt::format("{}", value), of, low, high);
  }

  // Checks an event, and keeps it if it is an instruction.
  bool take() {
    if (event_.phase != "X" || event_.outer_update >= 0) return true;  // bodies are compared
    constexpr double kLongest = 1e13;  // microseconds: a hundred days
    for (const auto& [name, value] : {std::pair{"ts", event_.ts}, {"dur", event_.dur}})
      if (!(value >= 0 && value <= kLongest))
        return refuse("the event's '{}' is {}; expected microseconds from 0 to {}", name,
                      std::isnan(value) ? "missing" : fmt::format("{}", value), kLongest);
    constexpr int64_t kMost = INT32_MAX;
    if (!is_whole("pid", event_.pid, 0, std::ssize(timeline_.row_of_rank) - 1, "a rank"))
      return false;
    const auto rank = static_cast<int64_t>(event_.pid);
    const auto row = timeline_.row_of_rank[static_cast<size_t>(rank)];
    const RoleProgram& role = *timeline_.rows[static_cast<size_t>(row)].role;
    if (!is_whole("tid", event_.tid, 0, std::max<int64_t>(std::ssize(role.streams), 1) - 1,
                  "a stream of that rank") ||
        !is_whole("step", event_.step, 1, kMost, "a training step") ||
        !is_whole("instruction", event_.instruction, 0, kMost, "its number") ||
        !is_whole("stage", event_.stage, -1, kMost, "a stage") ||
        !is_whole("micro", event_.micro, -1, kMost, "a microbatch"))
      return false;
    const InstructionDef* kind = find_instruction_by_word(event_.cat);
    if (!kind) {
      std::vector<std::string> words;
      for (const InstructionDef& one : kInstructions) words.emplace_back(one.word);
      return refuse("the event's 'cat' is '{}'; expected a kind of instruction{}",
                    quote_control(event_.cat), did_you_mean(event_.cat, words));
    }
    constexpr double kSeconds = 1e-6;
    steps[{rank, static_cast<int64_t>(event_.step)}].push_back(
        {std::move(event_.name), kind->kind, static_cast<int32_t>(event_.tid),
         static_cast<int32_t>(event_.stage), static_cast<int32_t>(event_.micro),
         static_cast<int32_t>(event_.instruction), 0, event_.ts * kSeconds,
         (event_.ts + event_.dur) * kSeconds, -1});
    return true;
  }

  const std::string path_;
  const std::string& text_;
  const Timeline& timeline_;
  const char* reached_;
  size_t depth_ = 0;
  bool in_list_ = false, any_list_ = false;
  std::string key_, inner_;
  Event event_;
  std::optional<Error> error_;
};

using TracedSteps = decltype(TraceReader::steps);
using PathOfStep = std::map<TracedSteps::key_type, std::string>;

using StepKey = std::tuple<std::string, InstructionKind, int32_t, int32_t>;
StepKey key_of(const Instruction& one) {
  return {one.label.empty() ? to_string(one.kind) : one.label, one.kind, one.stage, one.micro};
}
StepKey key_of(const MeasuredStep& event) {
  return {event.label, event.kind, event.stage, event.micro};
}

// Finds the bodies of a row: by training step, the first step of the row and how many.
std::vector<TimedSection> bodies_of(const TimedRow& row) {
  std::vector<TimedSection> bodies;
  const std::vector<Instruction>& body = row.role->body;
  for (const TimedSection& section : row.sections) {
    if (section.count == 0) continue;
    const Instruction* one = row.steps[static_cast<size_t>(section.first)].one;
    if (!std::less<>()(one, body.data()) && std::less<>()(one, body.data() + body.size()))
      bodies.push_back(section);
  }
  return bodies;
}

// Says how many of a section's instructions the events have, in whatever order.
size_t count_common(const TimedRow& row, const TimedSection& section,
                    const std::vector<MeasuredStep>& events) {
  std::map<StepKey, int64_t> left;
  for (const MeasuredStep& event : events) ++left[key_of(event)];
  size_t common = 0;
  for (int32_t s = 0; s < section.count; ++s)
    if (--left[key_of(*row.steps[static_cast<size_t>(section.first + s)].one)] >= 0) ++common;
  return common;
}

// Finds what the events of a rank's training step are among those that are timed from `section` on:
// all of these in their order, behind what a backend has put in front of them.
Status match_section(const TimedRow& row, const TimedSection& section, int64_t rank,
                     const std::string& path, std::vector<MeasuredStep>& events) {
  std::ranges::stable_sort(events, {}, &MeasuredStep::instruction);
  const auto count = static_cast<size_t>(section.count);
  const size_t front = std::max(events.size(), count) - count;
  for (size_t i = 0; i < count; ++i) {
    const int32_t step = section.first + static_cast<int32_t>(i);
    const StepKey key = key_of(*row.steps[static_cast<size_t>(step)].one);
    const size_t at = front + i;
    if (at < events.size() && key_of(events[at]) == key) {
      events[at].of = step;
      continue;
    }
    const size_t common = count_common(row, section, events);
    return fail(SourceSpan{path},
                "is of other plans: {} of its {} instructions of rank {} are among the {} of "
                "these{}; "
                "it has '{}' where these have '{}'",
                common, events.size(), rank, count,
                common == count && front == 0 ? ", in another order" : "",
                at < events.size() ? quote_control(events[at].label) : "nothing",
                quote_control(std::get<0>(key)))
        .with_note("help: name the plans that were run; --trace writes what they ran");
  }
  return ok_status();
}

// Takes the lowest traced rank of each row, and its first training steps.
Status fill_rows(const Timeline& timeline, TracedSteps& traced, const PathOfStep& path_of,
                 Measured& measured) {
  std::set<int64_t> numbers;
  for (const auto& [key, steps] : traced) numbers.insert(key.second);
  size_t common = numbers.size();
  for (const TimedRow& row : timeline.rows) common = std::min(common, bodies_of(row).size());
  numbers.erase(std::next(numbers.begin(), static_cast<std::ptrdiff_t>(common)), numbers.end());
  measured.steps = static_cast<int32_t>(common);
  measured.first_step = numbers.empty() ? 0 : *numbers.begin();
  for (size_t r = 0; r < timeline.rows.size(); ++r) {
    const TimedRow& row = timeline.rows[r];
    MeasuredRow& out = measured.rows.emplace_back();
    const std::vector<TimedSection> bodies = bodies_of(row);
    if (common > 0) {
      measured.predicted = std::max(measured.predicted, bodies[common - 1].end);
      // Where steps overlap a prologue is before them, which is not traced.
      const auto first = static_cast<size_t>(bodies[0].first);
      if (const int32_t section = row.steps[first].section; section > 0)
        measured.begin =
            std::max(measured.begin, row.sections[static_cast<size_t>(section) - 1].end);
    }
    for (const int64_t rank : row.ranks) {
      int32_t number = 0;
      for (const int64_t step : numbers) {
        const auto found = traced.find({rank, step});
        if (found != traced.end()) {
          PIPER_TRY(match_section(row, bodies[static_cast<size_t>(number)], rank,
                                  path_of.at(found->first), found->second));
          for (MeasuredStep& one : found->second) one.number = number;
          std::move(found->second.begin(), found->second.end(), std::back_inserter(out.steps));
          out.rank = rank;
        }
        ++number;
      }
      if (out.rank >= 0) break;
    }
    std::stable_sort(out.steps.begin(), out.steps.end(),
                     [](const auto& a, const auto& b) { return a.start < b.start; });
  }
  return ok_status();
}

}  // namespace

Result<Measured> read_measured(const Timeline& timeline, const std::vector<std::string>& paths) {
  TracedSteps traced;
  PathOfStep path_of;
  for (const std::string& path : paths) {
    constexpr int64_t kLargest = int64_t{1} << 30;
    PIPER_ASSIGN(const std::string text, read_text_file(path, kLargest));
    TraceReader reader(path, text, timeline);
    PIPER_TRY(reader.run());
    for (auto& [key, steps] : reader.steps) {
      if (!traced.try_emplace(key, std::move(steps)).second)
        return fail(SourceSpan{path}, "has step {} of rank {}, which another trace has, too",
                    key.second, key.first);
      path_of[key] = path;
    }
  }
  if (traced.empty()) return fail(SourceSpan{paths[0]}, "has no instruction that was traced");
  Measured measured;
  PIPER_TRY(fill_rows(timeline, traced, path_of, measured));
  double begin = INFINITY, end = 0;
  for (const MeasuredRow& row : measured.rows)
    for (const MeasuredStep& step : row.steps) {
      begin = std::min(begin, step.start);
      end = std::max(end, step.end);
    }
  for (MeasuredRow& row : measured.rows)
    for (MeasuredStep& step : row.steps) {
      step.start += measured.begin - begin;
      step.end += measured.begin - begin;
    }
  measured.length = end - begin;
  measured.predicted -= measured.begin;
  return measured;
}

}  // namespace piper
