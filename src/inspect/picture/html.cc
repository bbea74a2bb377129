// A page of what runs when: the timeline as columns of integers, with a program that draws them.
#include "piper/inspect/html.h"

#include <algorithm>
#include <cmath>
#include <set>

#include "columns.h"
#include "labels.h"
#include "page.h"
#include "piper/inspect/analysis.h"
#include "piper/plan/flops.h"

namespace piper {
namespace {

using Head = nlohmann::ordered_json;

// Says by which colour a step is drawn.
enum class Shade : uint8_t { kF, kB, kBI, kBW, kU, kMessage, kCollective, kLocal, kR };
constexpr std::array<const char*, 9> kShades = {"forward",    "backward", "its input",
                                                "its weight", "update",   "message",
                                                "collective", "copy",     "again"};
// By Cause, what a step waited for last.
constexpr std::array<const char*, 10> kCauses = {
    "nothing: it is the first",     "what was before it on its stream",
    "an instruction that it names", "the end of the section before",
    "its issue by the host",        "the device, which ran another",
    "the other half of its pair",   "the other end of the message",
    "the last member of its group", "what was before it on its communicator"};

Shade shade_of(const Instruction& one) {
  if (one.kind == InstructionKind::kSend || one.kind == InstructionKind::kRecv)
    return Shade::kMessage;
  if (is_collective(one.kind)) return Shade::kCollective;
  if (one.kind != InstructionKind::kCompute) return Shade::kLocal;
  switch (shown_pass(one)) {
    case TaskPass::kF:
      return Shade::kF;
    case TaskPass::kB:
      return Shade::kB;
    case TaskPass::kBI:
      return Shade::kBI;
    case TaskPass::kBW:
      return Shade::kBW;
    case TaskPass::kR:
      return Shade::kR;
    default:
      return Shade::kU;
  }
}

// Numbers texts, each once.
class Names {
 public:
  int64_t add(const std::string& name) {
    const auto [known, is_new] = known_.try_emplace(name, std::ssize(list_));
    if (is_new) list_.push_back(name);
    return known->second;
  }
  const std::vector<std::string>& list() const { return list_; }

 private:
  std::vector<std::string> list_;
  std::map<std::string, int64_t> known_;
};

class Page {
 public:
  Page(const Timeline& timeline, const Measured* measured)
      : timeline_(timeline), measured_(measured) {
    // A nanosecond; less, where that is much of the timeline.
    tick_ = timeline.length > 0
                ? std::pow(10, std::min(-9.0, std::floor(std::log10(timeline.length)) - 6))
                : 1e-9;
  }

  std::string draw(const std::string& title) {
    int64_t first = 0;  // of the row's steps, among all rows'
    for (const TimedRow& row : timeline_.rows) {
      firsts_.push_back(first);
      first += std::ssize(row.steps);
    }
    head_["title"] = title;
    head_["tick"] = tick_;
    head_["length"] = ticks(timeline_.length);
    head_["shades"] = kShades;
    head_["reasons"] = kIdleReasons;
    head_["origins"] = kCostOrigins;
    head_["causes"] = kCauses;
    for (const InstructionDef& kind : kInstructions) head_["kinds"].push_back(kind.word);
    for (const TaskPassName& pass : kTaskPasses) head_["passes"].push_back(pass.name);
    add_roles();
    add_rows();
    if (measured_) add_measured();
    head_["patterns"] = patterns_.list();
    head_["names"] = names_.list();
    head_["peers"] = peers_;
    for (const auto& [name, numbers] : numbers_)
      columns_.add(name.c_str(), numbers, differing_.contains(name));
    head_["columns"] = columns_.list();
    return assemble(title);
  }

 private:
  int64_t ticks(double time) const { return std::llround(time / tick_); }
  std::vector<int64_t>& column(const char* name) { return numbers_[name]; }
  std::vector<int64_t>& differences(const char* name) {
    differing_.insert(name);
    return numbers_[name];
  }

  // ---- What each role has to do: its sections one after the other ----
  void add_roles() {
    head_["roles"] = Head::array();
    for (const TimedRow& row : timeline_.rows) {
      const RolePlace place{std::ssize(roles_), instructions_};
      if (!roles_.try_emplace(row.role, place).second) continue;
      Head streams = Head::array();
      for (const Stream& stream : row.role->streams) streams.push_back(stream.name);
      for (const auto* section : {&row.role->prologue, &row.role->body, &row.role->epilogue})
        for (const Instruction& one : *section) add_instruction(*row.role, one);
      head_["roles"].push_back(
          {{"streams", streams}, {"first", place.first}, {"count", instructions_ - place.first}});
    }
  }
  void add_instruction(const RoleProgram& role, const Instruction& one) {
    ++instructions_;
    const auto pass = std::ranges::find(kTaskPasses, one.pass, &TaskPassName::pass);
    column("shade").push_back(static_cast<int64_t>(shade_of(one)));
    column("kind").push_back(static_cast<int64_t>(one.kind));
    column("pass").push_back(pass - kTaskPasses.begin());
    column("stream").push_back(one.stream);
    column("stage").push_back(one.stage);
    column("micro").push_back(one.micro);
    column("micros").push_back(one.micros);
    column("ahead").push_back(one.ahead);
    column("text").push_back(
        patterns_.add(one.label.empty() ? to_string(one.kind) : one.label, column("text.numbers")));
    const bool computes = one.kind == InstructionKind::kCompute;
    column("what").push_back(computes ? -1 : names_.add(what_of(role, one)));
    column("bytes").push_back(computes ? 0 : bytes_through(role, one));
    column("peer").push_back(one.peer.empty() ? -1 : peer_of(one.peer));
  }
  int64_t peer_of(const std::vector<int32_t>& peer) {
    const auto known = std::find(peers_.begin(), peers_.end(), peer);
    if (known != peers_.end()) return known - peers_.begin();
    peers_.push_back(peer);
    return std::ssize(peers_) - 1;
  }
  // Returns where the instruction is among those of all roles, and its section: 0 for a prologue.
  std::pair<int64_t, int> place_of(const RoleProgram& role, const Instruction* one) const {
    int64_t before = roles_.at(&role).first;
    int number = 0;
    for (const auto* section : {&role.prologue, &role.body, &role.epilogue}) {
      const Instruction* begin = section->data();
      if (!section->empty() && !std::less<>()(one, begin) &&
          std::less<>()(one, begin + section->size()))
        return {before + (one - begin), number};
      before += std::ssize(*section);
      ++number;
    }
    PIPER_CHECK(false, "a step of a timeline is an instruction of its row's role");
    return {};
  }

  // ---- What each row did ----
  void add_rows() {
    for (const auto& [axis, size] : timeline_.rows.empty() ? Mesh{} : timeline_.rows[0].role->mesh)
      head_["mesh"].push_back({axis, size});
    head_["rows"] = Head::array();
    double bodies = 0, before = 0, end = 0;
    for (size_t r = 0; r < timeline_.rows.size(); ++r) {
      const TimedRow& row = timeline_.rows[r];
      Head sections = Head::array();
      std::vector<double> ends;
      for (const TimedSection& section : row.sections) {
        // A prologue or an epilogue may be empty, and is no body.
        const int which =
            section.count == 0
                ? 0
                : place_of(*row.role, row.steps[static_cast<size_t>(section.first)].one).second;
        sections.push_back({which, section.first, section.count, ticks(section.end)});
        if (which == 1) ends.push_back(section.end);
      }
      if (ends.size() > 1) before = std::max(before, ends[ends.size() - 2]);
      if (!ends.empty()) end = std::max(end, ends.back());
      bodies = std::max(bodies, static_cast<double>(ends.size()));
      head_["rows"].push_back({{"ranks", row.ranks},
                               {"role", roles_.at(row.role).number},
                               {"first", firsts_[r]},
                               {"count", row.steps.size()},
                               {"sections", sections}});
      for (size_t s = 0; s < row.steps.size(); ++s) add_step(row, r, s);
      add_gaps(r);
    }
    head_["steps"] = bodies;
    head_["step"] = ticks(bodies > 1 ? end - before : timeline_.length);
  }
  void add_step(const TimedRow& row, size_t r, size_t s) {
    const TimedStep& step = row.steps[s];
    const StepCost& cost = step.cost;
    const int64_t own = firsts_[r] + static_cast<int64_t>(s), start = ticks(step.start),
                  length = ticks(step.end) - start;
    differences("step.one").push_back(place_of(*row.role, step.one).first);
    differences("step.number").push_back(step.number);
    differences("step.start").push_back(start);
    column("step.length").push_back(length);
    column("step.waited").push_back(start - ticks(step.ready));
    // Says how much longer it took than by itself, with the device or the link for it alone.
    column("step.shared")
        .push_back(length - ticks(cost.device + cost.lane + cost.latency + cost.wire));
    column("step.flags")
        .push_back(static_cast<int64_t>(cost.origin) + 4 * step.paired + 8 * step.second +
                   16 * (cost.device > 0) + 32 * static_cast<int64_t>(step.cause));
    column("step.cause").push_back(behind(own, cause_of(step, r)));
  }
  // Returns the step that it waited for last, among all rows'; -1: none.
  int64_t cause_of(const TimedStep& step, size_t row) const {
    if (step.cause_step >= 0)
      return global(step.cause_row < 0 ? static_cast<int32_t>(row) : step.cause_row,
                    step.cause_step);
    if (step.cause != Cause::kSection || step.section == 0) return -1;
    const TimedRow& own = timeline_.rows[row];
    const TimedSection& before = own.sections[static_cast<size_t>(step.section) - 1];
    int32_t last = -1;
    for (int32_t s = before.first; s < before.first + before.count; ++s)
      if (last < 0 ||
          own.steps[static_cast<size_t>(s)].end > own.steps[static_cast<size_t>(last)].end)
        last = s;
    return last < 0 ? -1 : global(static_cast<int32_t>(row), last);
  }
  int64_t global(int32_t row, int32_t step) const {
    return firsts_[static_cast<size_t>(row)] + step;
  }
  // Returns how far before `own` the other is; 0: there is none.
  static int64_t behind(int64_t own, int64_t other) { return other < 0 ? 0 : own - other; }

  void add_gaps(size_t r) {
    const std::vector<IdlePiece> pieces = idle_pieces(timeline_, r, 0, timeline_.length);
    head_["rows"].back()["gaps"] = pieces.size();
    const auto row = static_cast<int32_t>(r);
    for (const IdlePiece& piece : pieces) {
      differences("gap.from").push_back(ticks(piece.from));
      column("gap.length").push_back(ticks(piece.to) - ticks(piece.from));
      column("gap.reason").push_back(static_cast<int64_t>(piece.reason));
      differences("gap.step").push_back(piece.step < 0 ? -1 : global(row, piece.step));
      const bool caused = piece.cause_row >= 0 && piece.cause_step >= 0;
      differences("gap.cause").push_back(caused ? global(piece.cause_row, piece.cause_step) : -1);
    }
  }

  void add_measured() {
    head_["measured"] = {{"steps", measured_->steps},
                         {"first_step", measured_->first_step},
                         {"length", ticks(measured_->length)},
                         {"predicted", ticks(measured_->predicted)}};
    Head& rows = head_["measured"]["rows"] = Head::array();
    for (size_t r = 0; r < measured_->rows.size(); ++r) {
      const MeasuredRow& row = measured_->rows[r];
      rows.push_back({row.rank, row.steps.size()});
      for (const MeasuredStep& step : row.steps) {
        differences("run.of").push_back(step.of < 0 ? -1
                                                    : global(static_cast<int32_t>(r), step.of));
        differences("run.start").push_back(ticks(step.start));
        column("run.length").push_back(ticks(step.end) - ticks(step.start));
        column("run.kind").push_back(static_cast<int64_t>(step.kind));
        column("run.stream").push_back(step.stream);
        column("run.stage").push_back(step.stage);
        column("run.micro").push_back(step.micro);
        column("run.number").push_back(step.number);
        column("run.text").push_back(patterns_.add(step.label, column("run.text.numbers")));
      }
    }
  }

  // Puts all into the page: its parts are named {{so}} in it, each once.
  std::string assemble(const std::string& title) const {
    const std::string_view page = page_text("timeline.html");
    std::string text;
    for (size_t at = 0;;) {
      const size_t open = page.find("{{", at), close = page.find("}}", open);
      text += page.substr(at, open - at);
      if (open == page.npos) return text;
      const std::string_view part = page.substr(open + 2, close - open - 2);
      if (part == "title")
        text += escape_markup(title);
      else if (part == "head")
        text += head_text();
      else if (part == "data")
        text += columns_.base64();
      else
        text += page_text(part);
      at = close + 2;
    }
  }
  // Returns JSON in which no text can end the element that holds it.
  std::string head_text() const {
    std::string text;
    for (const char c : head_.dump(-1, ' ', false, Head::error_handler_t::replace))
      c == '<' ? void(text += "\\u003c") : text.push_back(c);
    return text;
  }

  const Timeline& timeline_;
  const Measured* const measured_;
  double tick_ = 0;  // seconds
  Head head_;
  Columns columns_;
  Patterns patterns_;
  Names names_;
  std::vector<std::vector<int32_t>> peers_;
  std::vector<int64_t> firsts_;  // by row: its first step among all rows'
  struct RolePlace {
    int64_t number = 0, first = 0;  // its first instruction among all roles'
  };
  std::map<const RoleProgram*, RolePlace> roles_;
  int64_t instructions_ = 0;                             // of all roles
  std::map<std::string, std::vector<int64_t>> numbers_;  // by column
  std::set<std::string> differing_;                      // columns that hold differences
};

}  // namespace

std::string draw_html(const Timeline& timeline, const std::string& title,
                      const Measured* measured) {
  return Page(timeline, measured).draw(title);
}

}  // namespace piper
