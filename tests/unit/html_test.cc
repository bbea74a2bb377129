// The page of a timeline: its numbers are those of the timeline, no text breaks it, it needs
// nothing else, and traces that are laid beside it are not believed.
#include "piper/inspect/html.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <random>

#include "folder.h"
#include "piper/inspect/analysis.h"
#include "piper/planner/lower.h"
#include "seed.h"
#include "unit/chain.h"

namespace piper {
namespace {

using Json = nlohmann::json;

// ---- Timelines ----------------------------------------------------------------------------------

PlanSet lowered_plans(const chain::Made& made) {
  auto lowered = lower(made.dag, made.schedule);
  EXPECT_TRUE(lowered) << (lowered ? "" : print_error(lowered.error()));
  PlanSet set;
  if (!lowered) return set;
  for (size_t d = 0; d < lowered->roles.size(); ++d)
    set.role_of_rank.push_back(static_cast<int32_t>(d));
  set.roles = std::move(lowered->roles);
  return set;
}
PlanSet library_plans(const char* schedule, int64_t stages, int64_t chunks, int64_t microbatches) {
  const auto made = chain::library(schedule, stages, chunks, microbatches);
  EXPECT_TRUE(made) << (made ? "" : print_error(made.error()));
  return made ? lowered_plans(*made) : PlanSet{};
}
// It refers to the set.
Timeline timeline_of(const PlanSet& set, double forward = 3e-3, int32_t steps = 1) {
  StatedCosts costs{forward, 7.1e-3, 4e-3, 3.1e-3, 1e-3, 0.4e-3, {}};
  auto timeline = simulate(set, *stated_machine(costs), steps);
  EXPECT_TRUE(timeline) << (timeline ? "" : print_error(timeline.error()));
  return timeline ? *std::move(timeline) : Timeline{};
}

// ---- A reader of pages --------------------------------------------------------------------------

size_t count(std::string_view text, std::string_view part) {
  size_t found = 0;
  for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++found;
  return found;
}
std::string element(const std::string& page, const std::string& id) {
  const size_t name = page.find("id=\"" + id + "\""), begin = page.find('>', name) + 1;
  return page.substr(begin, page.find("</script>", begin) - begin);
}
std::string from_base64(const std::string& text) {
  const std::string letters = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::string bytes;
  uint32_t bits = 0;
  int known = 0;
  for (const char c : text) {
    if (c == '=') break;
    const size_t value = letters.find(c);
    EXPECT_NE(value, letters.npos) << c;
    bits = bits << 6 | static_cast<uint32_t>(value);
    known += 6;
    if (known < 8) continue;
    known -= 8;
    bytes += static_cast<char>(bits >> known & 255);
  }
  return bytes;
}

struct Decoded {
  Json head;
  std::map<std::string, std::vector<int64_t>> columns;
  std::vector<int64_t> operator[](const char* name) const {
    const auto found = columns.find(name);
    return found == columns.end() ? std::vector<int64_t>{} : found->second;
  }
  std::vector<std::string> texts(const char* patterns, const char* numbers) const {
    std::vector<std::string> all;
    const std::vector<int64_t> values = (*this)[numbers];
    size_t next = 0;
    for (const int64_t pattern : (*this)[patterns]) {
      const Json& pieces = head["patterns"][static_cast<size_t>(pattern)];
      std::string& text = all.emplace_back(pieces[0]);
      for (size_t p = 1; p < pieces.size(); ++p)
        text += std::to_string(values.at(next++)) + std::string(pieces[p]);
    }
    EXPECT_EQ(next, values.size());
    return all;
  }
};
Decoded decode(const std::string& page) {
  Decoded out{Json::parse(element(page, "head")), {}};
  const std::string bytes = from_base64(element(page, "data"));
  for (const Json& column : out.head["columns"]) {
    size_t at = column[1];
    std::vector<int64_t>& numbers = out.columns[column[0]];
    int64_t before = 0;
    for (size_t n = 0; n < column[2]; ++n) {
      uint64_t value = 0;
      for (int shift = 0;; shift += 7) {
        const auto byte = static_cast<uint8_t>(bytes.at(at++));
        value |= static_cast<uint64_t>(byte & 127) << shift;
        if (byte < 128) break;
      }
      const auto number = static_cast<int64_t>(value >> 1) ^ -static_cast<int64_t>(value & 1);
      numbers.push_back(column[3] == 1 ? before + number : number);
      before = numbers.back();
    }
  }
  return out;
}

// ---- Numbers ------------------------------------------------------------------------------------

// Expects all that is known of the row's steps, the first of which is number `first` of the page.
void expect_steps(const Decoded& page, const Timeline& timeline, size_t r,
                  const std::vector<int64_t>& firsts) {
  const TimedRow& row = timeline.rows[r];
  const auto ones = page["step.one"], starts = page["step.start"], lengths = page["step.length"],
             waited = page["step.waited"], flags = page["step.flags"], causes = page["step.cause"],
             micros = page["micro"], stages = page["stage"], streams = page["stream"];
  const auto labels = page.texts("text", "text.numbers");
  const double tick = page.head["tick"];
  for (size_t s = 0; s < row.steps.size(); ++s) {
    const TimedStep& step = row.steps[s];
    const size_t own = static_cast<size_t>(firsts[r]) + s, one = static_cast<size_t>(ones.at(own));
    ASSERT_EQ(labels.at(one), step.one->label);
    ASSERT_EQ(micros.at(one), step.one->micro);
    ASSERT_EQ(stages.at(one), step.one->stage);
    ASSERT_EQ(streams.at(one), step.one->stream);
    const auto start = static_cast<double>(starts.at(own));
    ASSERT_NEAR(start * tick, step.start, tick);
    ASSERT_NEAR((start + static_cast<double>(lengths.at(own))) * tick, step.end, tick);
    ASSERT_NEAR((start - static_cast<double>(waited.at(own))) * tick, step.ready, tick);
    ASSERT_EQ(flags.at(own) % 4, static_cast<int64_t>(step.cost.origin));
    ASSERT_EQ(flags.at(own) / 32, static_cast<int64_t>(step.cause));
    if (step.cause_step >= 0) {
      const size_t cause_row = step.cause_row < 0 ? r : static_cast<size_t>(step.cause_row);
      ASSERT_EQ(static_cast<int64_t>(own) - causes.at(own), firsts[cause_row] + step.cause_step);
    }
  }
}

void expect_all(const PlanSet& set, double forward = 3e-3, int32_t steps = 1) {
  const Timeline timeline = timeline_of(set, forward, steps);
  const Decoded page = decode(draw_html(timeline, "a title"));
  std::vector<int64_t> firsts;
  int64_t next = 0;
  for (const TimedRow& row : timeline.rows) {
    firsts.push_back(next);
    next += std::ssize(row.steps);
  }
  const double tick = page.head["tick"];
  EXPECT_NEAR(page.head["length"].get<double>() * tick, timeline.length, tick);
  EXPECT_LE(tick, 1e-6 * timeline.length);
  const auto from = page["gap.from"], length = page["gap.length"], reason = page["gap.reason"],
             in = page["gap.step"], cause = page["gap.cause"];
  size_t gap = 0;
  for (size_t r = 0; r < timeline.rows.size(); ++r) {
    EXPECT_EQ(page.head["rows"][r]["first"], firsts[r]);
    EXPECT_EQ(page.head["rows"][r]["ranks"], Json(timeline.rows[r].ranks));
    expect_steps(page, timeline, r, firsts);
    const auto pieces = idle_pieces(timeline, r, 0, timeline.length);
    ASSERT_EQ(page.head["rows"][r]["gaps"], pieces.size());
    for (const IdlePiece& piece : pieces) {
      ASSERT_NEAR(static_cast<double>(from.at(gap)) * tick, piece.from, tick);
      ASSERT_NEAR(static_cast<double>(length.at(gap)) * tick, piece.to - piece.from, 2 * tick);
      ASSERT_EQ(reason.at(gap), static_cast<int64_t>(piece.reason));
      ASSERT_EQ(in.at(gap), piece.step < 0 ? -1 : firsts[r] + piece.step);
      const bool caused = piece.cause_row >= 0 && piece.cause_step >= 0;
      ASSERT_EQ(cause.at(gap),
                caused ? firsts[static_cast<size_t>(piece.cause_row)] + piece.cause_step : -1);
      ++gap;
    }
  }
  EXPECT_EQ(gap, from.size());
}

TEST(Html, HoldsTheNumbersOfTheTimeline) {
  expect_all(library_plans("1f1b", 4, 1, 8));
  expect_all(library_plans("zb-h1", 4, 1, 8));
  expect_all(library_plans("interleaved-1f1b", 4, 2, 8), 3e-3, 3);
  expect_all(library_plans("zb-h2", 4, 1, 8), 1e-9, 2);
}

// Where steps overlap, a rank may have nothing to do before the first body.
TEST(Html, AnEmptyPrologueIsNoStep) {
  PlanSet set = library_plans("1f1b", 2, 1, 4);
  for (RoleProgram& role : set.roles) role.steps_ahead = 1;
  EXPECT_EQ(decode(draw_html(timeline_of(set), "t")).head["steps"], 1);
  EXPECT_EQ(decode(draw_html(timeline_of(set, 3e-3, 3), "t")).head["steps"], 3);
}

TEST(Html, IsTheSameEachTime) {
  const PlanSet set = library_plans("dualpipe", 4, 1, 8);
  EXPECT_EQ(draw_html(timeline_of(set), "t"), draw_html(timeline_of(set), "t"));
  EXPECT_NE(draw_html(timeline_of(set), "t"), draw_html(timeline_of(set, 3.1e-3), "t"));
}

TEST(Html, OfManyRanksIsSmall) {
  const PlanSet set = library_plans("1f1b", 64, 1, 256);
  const std::string page = draw_html(timeline_of(set), "many");
  EXPECT_LT(page.size(), 10u << 20);
  const Decoded decoded = decode(page);
  EXPECT_EQ(decoded.head["rows"].size(), 64u);
  EXPECT_GT(decoded["step.one"].size(), 64u * 256 * 2);
}

// ---- Texts --------------------------------------------------------------------------------------

// What could reach out of the page, or be read by a browser as more than text.
void expect_closed(const std::string& page, const std::string& plain) {
  for (const char* part : {"<script", "</script>", "<!--", "<style", "</style>", "<title>"})
    EXPECT_EQ(count(page, part), count(plain, part)) << part;
  for (const char* part : {"://", " src=", "@import", "url(", "fetch(", "XMLHttpRequest",
                           "innerHTML", "<link", "<img", "eval("})
    EXPECT_EQ(count(plain, part), 0u) << part;
  EXPECT_EQ(count(plain, "default-src 'none'"), 1u);
}

TEST(Html, NoTextBreaksThePage) {
  PlanSet set = library_plans("1f1b", 2, 1, 2);
  const std::string plain = draw_html(timeline_of(set), "plain");
  const std::string bad = "</script><script>alert(\"1\")</script><!-- \\u003c '\n\x01{{data}}";
  const std::vector<std::string> labels = {
      bad, "", "007 1234567890123 12 \xc3\xa4 9", "\x31\x32", "mb=3", "0", "00"};
  size_t next = 0;
  for (RoleProgram& role : set.roles) {
    role.streams[0].name = bad;
    for (Instruction& one : role.body) one.label = labels[next++ % labels.size()];
  }
  ASSERT_GT(next, labels.size());
  const Timeline timeline = timeline_of(set);
  const std::string page = draw_html(timeline, "a <b> & \"c\"" + bad);
  expect_closed(page, plain);
  EXPECT_NE(page.find("<title>a &lt;b&gt; &amp; &quot;c&quot;&lt;/script&gt;"), page.npos);
  const Decoded decoded = decode(page);
  EXPECT_EQ(decoded.head["roles"][0]["streams"][0], bad);
  const auto texts = decoded.texts("text", "text.numbers");
  size_t checked = 0;
  for (const RoleProgram& role : set.roles)
    for (const Instruction& one : role.body)
      EXPECT_EQ(texts.at(checked++), one.label.empty() ? to_string(one.kind) : one.label);
}

TEST(Html, TextsThatAreNotUtf8AreReplaced) {
  PlanSet set = library_plans("gpipe", 2, 1, 2);
  set.roles[0].body[0].label = "a\xff b";
  const Decoded decoded = decode(draw_html(timeline_of(set), "t"));
  EXPECT_EQ(decoded.texts("text", "text.numbers")[0], "a\xef\xbf\xbd b");
}

// ---- Measured beside predicted ------------------------------------------------------------------

// Returns the trace of a run that takes what the timeline says, in the form of piper-run: it has
// instructions that take no time, too.
Json run_trace(const Timeline& timeline) {
  auto events = Json::array();
  for (const TimedRow& row : timeline.rows)
    for (size_t s = 0; s < row.steps.size(); ++s) {
      const TimedStep& step = row.steps[s];
      const Instruction& one = *step.one;
      Json args = {{"step", step.number + 1},
                   {"instruction",
                    static_cast<int>(s) - row.sections[static_cast<size_t>(step.section)].first}};
      if (one.stage >= 0) args["stage"] = one.stage;
      if (one.micro >= 0) args["micro"] = one.micro;
      events.push_back({{"name", one.label.empty() ? to_string(one.kind) : one.label},
                        {"cat", to_string(one.kind)},
                        {"ph", "X"},
                        {"ts", step.start * 1e6},
                        {"dur", (step.end - step.start) * 1e6},
                        {"pid", row.ranks.front()},
                        {"tid", one.stream},
                        {"args", args}});
    }
  return {{"displayTimeUnit", "ms"}, {"traceEvents", std::move(events)}};
}

TEST(Html, MeasuredStepsFindTheirPrediction) {
  const PlanSet set = library_plans("1f1b", 4, 1, 8);
  const Folder folder;
  // What another forward makes is the trace, from step 1 on.
  const std::string trace = folder.write("trace.json", run_trace(timeline_of(set, 4e-3, 2)).dump());
  const Timeline timeline = timeline_of(set, 3e-3, 1);
  const auto measured = read_measured(timeline, {trace});
  ASSERT_TRUE(measured) << print_error(measured.error());
  EXPECT_EQ(measured->steps, 1);
  EXPECT_EQ(measured->first_step, 1);
  EXPECT_NEAR(measured->predicted, timeline.length, 1e-9);
  EXPECT_NEAR(measured->length - measured->predicted,
              timeline_of(set, 4e-3).length - timeline.length, 1e-8);
  size_t forwards = 0;
  for (size_t r = 0; r < timeline.rows.size(); ++r)
    for (const MeasuredStep& step : measured->rows[r].steps) {
      ASSERT_GE(step.of, 0);
      const TimedStep& own = timeline.rows[r].steps[static_cast<size_t>(step.of)];
      ASSERT_EQ(own.one->label, step.label);
      if (own.one->kind != InstructionKind::kCompute) continue;
      const bool is_forward = own.one->pass == TaskPass::kF;
      forwards += is_forward ? 1 : 0;
      EXPECT_NEAR(step.end - step.start, own.end - own.start + (is_forward ? 1e-3 : 0), 1e-8);
    }
  EXPECT_EQ(forwards, 4u * 8);
  const Decoded decoded = decode(draw_html(timeline, "t", &*measured));
  size_t first = 0;
  const auto starts = decoded["run.start"], of = decoded["run.of"];
  const double tick = decoded.head["tick"];
  int64_t first_step = 0;
  for (size_t r = 0; r < timeline.rows.size(); ++r) {
    for (const MeasuredStep& step : measured->rows[r].steps) {
      ASSERT_NEAR(static_cast<double>(starts.at(first)) * tick, step.start, tick);
      ASSERT_EQ(of.at(first++), first_step + step.of);
    }
    first_step += std::ssize(timeline.rows[r].steps);
  }
  EXPECT_EQ(first, starts.size());
}

// A backend may put instructions in front of those of the plan, and a rank may not be traced.
TEST(Html, WhatThePlanDoesNotHaveIsShownAlone) {
  const PlanSet set = library_plans("1f1b", 2, 1, 2);
  const Timeline timeline = timeline_of(set);
  const Folder folder;
  auto events = Json::array({{{"ph", "M"}, {"pid", 1}},
                             {{"name", "packed"},
                              {"cat", "copy"},
                              {"ph", "X"},
                              {"ts", 5},
                              {"dur", 2},
                              {"pid", 1},
                              {"tid", 0},
                              {"args", {{"step", 7}, {"instruction", 0}}}}});
  const Json run = run_trace(timeline);
  for (Json event : run["traceEvents"]) {
    if (event["pid"] != 1) continue;
    event["args"]["step"] = 7;
    event["args"]["instruction"] = event["args"]["instruction"].get<int>() + 1;
    event["ts"] = event["ts"].get<double>() + 8.5;
    events.push_back(event);
  }
  const std::string trace = folder.write(
      "trace.json",
      Json{{"other", {{"traceEvents", {1}}}}, {"traceEvents", std::move(events)}}.dump());
  const auto measured = read_measured(timeline, {trace});
  ASSERT_TRUE(measured) << print_error(measured.error());
  EXPECT_EQ(measured->rows[0].rank, -1);
  const std::vector<MeasuredStep>& steps = measured->rows[1].steps;
  ASSERT_EQ(steps.size(), timeline.rows[1].steps.size() + 1);
  EXPECT_EQ(std::ranges::count(steps, -1, &MeasuredStep::of), 1);
  EXPECT_EQ(steps[0].label, "packed");
  EXPECT_EQ(steps[0].of, -1);
  EXPECT_NEAR(steps[0].start, 0, 1e-12);
  EXPECT_NEAR(steps[1].start - timeline.rows[1].steps[0].start, 3.5e-6, 1e-9);
  EXPECT_EQ(measured->first_step, 7);
}

// What others ran is not drawn beneath a prediction: neither other tasks nor another order.
TEST(Html, TracesOfOtherPlansAreRefused) {
  const PlanSet set = library_plans("1f1b", 2, 1, 4);
  const Timeline timeline = timeline_of(set);
  const Folder folder;
  const auto error = [&](const char* schedule, int64_t microbatches) -> std::string {
    const PlanSet other = library_plans(schedule, 2, 1, microbatches);
    const std::string trace = folder.write("t.json", run_trace(timeline_of(other)).dump());
    const auto measured = read_measured(timeline, {trace});
    return measured ? "none" : measured.error().message;
  };
  EXPECT_EQ(error("1f1b", 4), "none");
  EXPECT_NE(error("gpipe", 4).find("of these, in another order; "), std::string::npos)
      << error("gpipe", 4);
  for (const int64_t microbatches : {2, 8})
    EXPECT_TRUE(error("1f1b", microbatches).starts_with("is of other plans: ")) << microbatches;
}

std::string error_of(const std::string& text) {
  const PlanSet set = library_plans("1f1b", 2, 1, 2);
  const Timeline timeline = timeline_of(set);
  const Folder folder;
  const auto measured = read_measured(timeline, {folder.write("t.json", text)});
  if (measured) return "no error";
  const std::string error = print_error(measured.error());
  const std::string line = error.substr(0, error.find('\n'));
  return line.substr(line.find("t.json") + 6);
}

TEST(Html, TracesAreNotBelieved) {
  const auto event = [](const std::string& fields) {
    return error_of("{\"traceEvents\": [\n  {\"name\":\"n\",\"ph\":\"X\"," + fields + "}]}");
  };
  const std::string time = "\"cat\":\"send\",\"ts\":1,\"dur\":1,";
  EXPECT_EQ(event(time + "\"pid\":2,\"tid\":0,\"args\":{\"step\":1}"),
            ":2:3: error: the event's 'pid' is 2; expected a rank from 0 to 1");
  EXPECT_EQ(event(time + "\"pid\":0.5,\"tid\":0,\"args\":{\"step\":1}"),
            ":2:3: error: the event's 'pid' is 0.5; expected a rank from 0 to 1");
  EXPECT_EQ(event(time + "\"tid\":0,\"args\":{\"step\":1}"),
            ":2:3: error: the event's 'pid' is missing; expected a rank from 0 to 1");
  EXPECT_EQ(event(time + "\"pid\":0,\"tid\":0,\"args\":{}"),
            ":2:3: error: the event's 'step' is missing; expected a training step from 1 to "
            "2147483647");
  EXPECT_EQ(event("\"cat\":\"sent\",\"ts\":1,\"dur\":1,\"pid\":0,\"tid\":0,"
                  "\"args\":{\"step\":1,\"instruction\":0}"),
            ":2:3: error: the event's 'cat' is 'sent'; expected a kind of instruction (did you "
            "mean 'send'?)");
  EXPECT_EQ(event("\"cat\":\"send\",\"ts\":-1,\"dur\":1"),
            ":2:3: error: the event's 'ts' is -1; expected microseconds from 0 to 10000000000000");
  EXPECT_EQ(event("\"cat\":\"send\",\"ts\":1,\"dur\":\"1\""),
            ":2:3: error: the event's 'dur' is missing; expected microseconds from 0 to "
            "10000000000000");
  EXPECT_EQ(event("\"ts\":1e999"), ":2:34: error: is not JSON from here on");
  EXPECT_EQ(error_of("{\"traceEvents\": [\n\n {]}"), ":3:3: error: is not JSON from here on");
  EXPECT_EQ(error_of("[]"), ": error: has no list 'traceEvents': it is no trace of piper-run");
  EXPECT_EQ(error_of("{\"traceEvents\": []}"), ": error: has no instruction that was traced");
  EXPECT_EQ(error_of(std::string(1'000'000, '[')), ":1:1000000: error: is not JSON from here on");
  EXPECT_EQ(event(time + "\"pid\":0,\"tid\":0,\"args\":{\"step\":1}"),
            ":2:3: error: the event's 'instruction' is missing; expected its number from 0 to "
            "2147483647");
  EXPECT_EQ(
      event(time + "\"pid\":0,\"tid\":0,\"args\":{\"step\":1,\"instruction\":0}").substr(0, 67),
      ": error: is of other plans: 0 of its 1 instructions of rank 0 are a");
}

// Whatever a trace says, it is refused or drawn as what it says.
TEST(Html, ChangedTracesAreRefusedOrShown) {
  const uint64_t seed = given_seed().value_or(20'26);
  SCOPED_TRACE(fmt::format("PIPER_SEED={}", seed));
  std::mt19937 random(static_cast<uint32_t>(seed));
  const PlanSet set = library_plans("1f1b", 2, 1, 2);
  const Timeline timeline = timeline_of(set);
  const std::string trace = run_trace(timeline).dump();
  const Folder folder;
  int shown = 0, refused = 0;
  for (int n = given_count().value_or(400); n > 0; --n) {
    std::string text = trace;
    for (uint32_t edits = random() % 3 + 1; edits > 0; --edits) {
      const size_t at = random() % text.size();
      if (random() % 3 == 0)
        text.erase(at, random() % 8);
      else
        text[at] = "0129-+.eE:[]{},\"\\ \xff"[random() % 19];
    }
    const auto measured = read_measured(timeline, {folder.write("t.json", text)});
    (measured ? shown : refused) += 1;
    if (measured) (void)decode(draw_html(timeline, "t", &*measured));
  }
  EXPECT_GT(shown, 0);
  EXPECT_GT(refused, 0);
}

TEST(Html, TwoTracesOfOneRankAreRefused) {
  const PlanSet set = library_plans("1f1b", 2, 1, 2);
  const Timeline timeline = timeline_of(set);
  const Folder folder;
  const std::string one = folder.write("one.json", run_trace(timeline).dump()),
                    two = folder.write("two.json", run_trace(timeline).dump());
  const auto measured = read_measured(timeline, {one, two});
  ASSERT_FALSE(measured);
  EXPECT_NE(measured.error().message.find("has step 1 of rank 0, which another trace has, too"),
            std::string::npos)
      << measured.error().message;
}

}  // namespace
}  // namespace piper
