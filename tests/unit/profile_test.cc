// What a profile says, beside a trace of the same steps; of threads, and of processes over TCP and
// MPI.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <set>

#include "folder.h"
#include "sanitizer.h"
#include "shell.h"
#include "unit/runtime_plans.h"

namespace piper::profile_test {
namespace {

using namespace plans;  // NOLINT: the fixtures of this test
using Json = nlohmann::json;

JobOptions options_of(int64_t steps) {
  JobOptions options;
  options.steps = steps;
  options.threads = 1;
  options.profile_steps = options.trace_steps = steps;
  return options;
}
JobResult run(const PlanSet& set, const JobOptions& options) {
  std::vector<int64_t> widths;
  for (const RoleProgram& role : set.roles)
    for (const DataInput& input : role.inputs)
      widths.push_back(num_elements(input.type.shape) / role.batch);
  const Numbers data(widths);
  auto result = run_job(set, &data, nullptr, nullptr, options);
  EXPECT_TRUE(result.ok()) << result.error().message;
  return result.ok() ? *std::move(result) : JobResult();
}
Json parsed(const std::string& text) {
  Json json = Json::parse(text, nullptr, false);
  EXPECT_FALSE(json.is_discarded()) << text;
  return json;
}

// Times by what took them: programs by their digests, all else by its kind.
using ByName = std::map<std::string, std::vector<double>>;
ByName times_of(const std::vector<RankTrace>& traces, int64_t first_step, bool of_host = false) {
  ByName times;
  for (const RankTrace& trace : traces) {
    for (const Program& program : trace.role->programs)
      if (!of_host) times[program_digest(program)];
    for (const TraceEvent& event : trace.events) {
      if (event.step + 1 < first_step) continue;
      const Instruction& one = trace.role->body[static_cast<size_t>(event.instruction)];
      const bool computes = one.kind == InstructionKind::kCompute;
      times[computes ? program_digest(trace.role->programs[static_cast<size_t>(one.program)])
                     : to_string(one.kind)]
          .push_back(of_host ? event.issue_us : event.end_us - event.start_us);
    }
  }
  for (auto& [name, all] : times) std::sort(all.begin(), all.end());
  return times;
}

// What an entry says otherwise than these times; "": nothing.
std::string differs(const Json& entry, const std::vector<double>& times) {
  const auto count = static_cast<int64_t>(times.size());
  if (entry.at("count") != count)
    return fmt::format("{} times, not {}", entry.at("count").dump(), count);
  if (count == 0) return entry.contains("median_us") ? "times of nothing" : "";
  double total = 0;
  for (const double time : times) total += time;
  const auto number = [&](const char* key) { return entry.at(key).get<double>(); };
  if (std::abs(number("total_us") - total) > 2e-3)
    return fmt::format("{} µs in all, not {}", number("total_us"), total);
  if (std::abs(number("min_us") - times.front()) > 1e-3)
    return fmt::format("at least {} µs, not {}", number("min_us"), times.front());
  // Many times are thinned out, so that a share is off by one of 128 parts at most, and once more
  // where parts are put together.
  for (const auto& [key, share] : {std::pair("median_us", 0.5), std::pair("p90_us", 0.9)}) {
    const auto place = [&](double of) {
      const auto at = static_cast<int64_t>(std::ceil(of * static_cast<double>(count))) - 1;
      return times[static_cast<size_t>(std::clamp<int64_t>(at, 0, count - 1))];
    };
    const double off = count > 512 ? 2.0 / 128 : 0;
    if (number(key) < place(share - off) - 1e-3 || number(key) > place(share + off) + 1e-3)
      return fmt::format("{} is {} µs, not {}", key, number(key), place(share));
  }
  return "";
}

// Of a whole profile; programs once each.
std::string differs(const Json& profile, const std::vector<RankTrace>& traces) {
  const int64_t first = profile.at("first_step");
  ByName expected = times_of(traces, first);
  for (const Json& entry : profile.at("programs")) {
    const auto found = expected.extract(entry.at("program").get<std::string>());
    if (found.empty()) return "a program that no plan has: " + entry.dump();
    if (const std::string what = differs(entry, found.mapped()); !what.empty())
      return entry.dump() + ": " + what;
  }
  std::map<std::string, std::pair<int64_t, double>> others;
  for (const char* table : {"communication", "local"})
    for (const Json& entry : profile.at(table)) {
      others[entry.at("kind")].first += entry.at("count").get<int64_t>();
      others[entry.at("kind")].second += entry.at("total_us").get<double>();
    }
  for (const auto& [name, times] : expected) {
    double total = 0;
    for (const double time : times) total += time;
    if (others[name].first != static_cast<int64_t>(times.size()) ||
        std::abs(others[name].second - total) > 1e-2)
      return fmt::format("{}: {} times and {} µs, not {} and {}", name, others[name].first,
                         others[name].second, times.size(), total);
  }
  ByName host = times_of(traces, first, true);
  double least = 0, count = 0;  // what all take if each takes the least time of its kind
  for (const Json& entry : profile.at("host").at("kinds")) {
    const std::string name = entry.at(entry.contains("program") ? "program" : "kind");
    const std::vector<double> times = host.extract(name).mapped();
    if (const std::string what = differs(entry, times); !what.empty())
      return "host: " + entry.dump() + ": " + what;
    least += times.front() * static_cast<double>(times.size());
    count += static_cast<double>(times.size());
  }
  const double each = profile.at("host").at("us_per_instruction");
  if (std::abs(each - least / count) > 1e-3)
    return fmt::format("host: {} µs an instruction, not {}", each, least / count);
  return host.empty() ? "" : "host: no " + host.begin()->first;
}

// All that a profile says but for times.
Json without_times(Json profile) {
  const auto drop = [](Json& from) {
    for (const char* key : {"median_us", "min_us", "p90_us", "total_us"}) from.erase(key);
  };
  for (const char* table : {"programs", "communication", "local"})
    for (Json& entry : profile.at(table)) drop(entry);
  for (Json& entry : profile.at("host").at("kinds")) drop(entry);
  drop(profile.at("step"));
  profile.at("host").erase("us_per_instruction");
  profile.erase("tokens_per_s");
  profile.erase("notes");  // of times, too
  return profile;
}

class Profiles : public testing::TestWithParam<HelperThread> {};

TEST_P(Profiles, AreWhatATraceOfTheSameStepsComesTo) {
  JobOptions options = options_of(13);
  options.helper = GetParam();
  for (const PlanSet& set : {pipeline(2), replicas(3), meanwhile()}) {
    JobResult result = run(set, options);
    const Json profile = parsed(result.profile);
    EXPECT_EQ(differs(profile, result.traces), "") << result.profile;
    EXPECT_EQ(profile.at("piper_profile"), 3);
    EXPECT_EQ(profile.at("first_step"), 4);
    EXPECT_EQ(profile.at("step").at("count"), 10);
    EXPECT_EQ(profile.at("clock"), "host");
    EXPECT_GT(profile.at("tokens_per_s"), 0);
    // Controls: of other times it is no profile.
    std::vector<RankTrace> others = result.traces;
    others[0].events.back().end_us += 1;
    EXPECT_NE(differs(profile, others), "");
    others[0].events.pop_back();
    EXPECT_NE(differs(profile, others), "");
    Json twice = profile;
    twice["programs"].push_back(twice["programs"].front());
    EXPECT_NE(differs(twice, result.traces), "");
    // Another run has the same keys in the same order, and other times.
    const std::string again = run(set, options).profile;
    EXPECT_EQ(without_times(parsed(again)), without_times(profile));
    EXPECT_NE(again, result.profile);
  }
}
INSTANTIATE_TEST_SUITE_P(Helpers, Profiles, testing::Values(HelperThread::kOff, HelperThread::kOn),
                         [](const auto& info) {
                           return info.param == HelperThread::kOn ? "on" : "off";
                         });

// What messages carry, and among how many.
TEST(Profile, TellsMessagesApart) {
  const auto entries_of = [](const PlanSet& set, const char* table) {
    std::set<std::string> said;
    const Json profile = without_times(parsed(run(set, options_of(5)).profile));
    for (Json entry : profile.at(table)) {
      entry.erase("count");
      said.insert(entry.dump());
    }
    return said;
  };
  EXPECT_EQ(entries_of(replicas(3), "communication"),
            (std::set<std::string>{R"({"bytes":24,"kind":"all_reduce","link":"inproc",)"
                                   R"("ranks":[0,1,2],"sum":"ordered"})"}));
  const auto messages = entries_of(pipeline(2), "communication");
  ASSERT_EQ(messages.size(), 2u);
  for (const std::string& one : messages)
    EXPECT_NE(one.find("\"link\":\"inproc\",\"ranks\":[0,1]}"), std::string::npos) << one;
}

TEST(Profile, LeavesOutThreeStepsWhereThereAreMore) {
  for (const auto& [steps, first] : {std::pair(1, 1), {2, 2}, {3, 3}, {4, 4}, {5, 4}, {20, 4}}) {
    const Json profile = parsed(run(pipeline(2), options_of(steps)).profile);
    EXPECT_EQ(profile.at("first_step"), first) << steps;
    EXPECT_EQ(profile.at("step").at("count"), steps - first + 1) << steps;
  }
  JobOptions last = options_of(20);
  last.profile_steps = 6;
  last.trace_steps = 2;
  const JobResult result = run(pipeline(2), last);
  EXPECT_EQ(parsed(result.profile).at("first_step"), 15);
  EXPECT_EQ(result.traces[0].events.front().step, 18);
}

// Ranks keep some times of many.
TEST(Profile, OfManyTimesHasNearlyTheirShares) {
  const JobResult result = run(pipeline(2), options_of(2000));
  EXPECT_EQ(differs(parsed(result.profile), result.traces), "");
}

// Of ranks that are processes rank 0 writes what all of them had.
class ProfileOfProcesses : public testing::Test {
 protected:
  void SetUp() override {
    const PlanSet set = replicas(2);
    ASSERT_TRUE(write_plan_set(set, nullptr, nullptr, at("plans"), {}));
    const std::vector<float> x(10, 0.5f);
    const std::vector<NamedTensor> batch{
        {"batch/0/t", {DType::kF32, {2}}, Bytes::copy_of(x.data(), 8)},
        {"batch/0/x", {DType::kF32, {2, 5}}, Bytes::copy_of(x.data(), 40)}};
    ASSERT_TRUE(write_safetensors(at("data.safetensors"), batch));
  }
  std::string at(const char* name) const { return std::string(folder_.path()) + "/" + name; }
  std::string piper_run(const std::string& more) const {
    return fmt::format("{}/bin/piper-run {} --data {} --threads 1 {}", PIPER_BINARY_DIR,
                       at("plans"), at("data.safetensors"), more);
  }
  Json profile_of(const std::string& command) {
    const auto [code, output] = run_shell("(" + command + ") 2>&1");
    EXPECT_EQ(code, 0) << output;
    const auto text = read_text_file(at("p.json"), 1 << 20);
    EXPECT_TRUE(text.ok()) << output;
    std::filesystem::remove(at("p.json"));
    return text ? without_times(parsed(*text)) : Json();
  }
  static Json with_link(Json profile, const char* link) {
    for (Json& entry : profile.at("communication")) entry["link"] = link;
    return profile;
  }

  Folder folder_;
};

TEST_F(ProfileOfProcesses, IsThatOfThreadsButForTheLink) {
  SKIP_UNDER_THREAD_SANITIZER();
  const std::string run = piper_run("--profile " + at("p.json"));
  const Json threads = profile_of(run);
  EXPECT_EQ(threads.at("step").at("count"), 10);
  EXPECT_EQ(threads.at("roles").at(0).at("ranks"), 2);
  EXPECT_EQ(threads.at("programs").at(0).at("count"), 20);
  const Json tcp = profile_of(as_processes(2, torch_variables(2, free_port()), run));
  EXPECT_EQ(tcp, with_link(threads, "tcp"));
  EXPECT_NE(tcp, threads);
  EXPECT_EQ(profile_of(kMpi + ("mpirun -n 2 " + run)), with_link(threads, "mpi"));
}

// The first steps after a load are slow whatever their number.
TEST_F(ProfileOfProcesses, AResumedJobWarmsUpToo) {
  SKIP_UNDER_THREAD_SANITIZER();
  const std::string kept = at("kept"), profile = " --profile " + at("p.json");
  ASSERT_EQ(run_shell(piper_run("--steps 4 --checkpoint " + kept) + " 2>&1").first, 0);
  EXPECT_EQ(profile_of(piper_run("--steps 9 --resume " + kept + profile)).at("step").at("count"),
            2);
  const auto [code, output] =
      run_shell(piper_run("--steps 4 --resume " + kept + profile) + " 2>&1");
  EXPECT_EQ(code, 2) << output;
  EXPECT_NE(output.find("error: --profile has nothing to time"), std::string::npos) << output;
}

TEST_F(ProfileOfProcesses, WhatCannotBeIsRefused) {
  SKIP_UNDER_THREAD_SANITIZER();
  const auto expect = [&](const std::string& flags, int wanted, const std::string& said) {
    const auto [code, output] = run_shell(piper_run(flags) + " 2>&1");
    EXPECT_EQ(code, wanted) << flags << output;
    EXPECT_NE(output.find(said), std::string::npos) << flags << output;
    return output;
  };
  // Before anything is trained.
  const std::string early = expect("--profile /nowhere/p.json", 12, "cannot write /nowhere/p.json");
  EXPECT_EQ(early.find("step 1/"), std::string::npos) << early;
  expect(fmt::format("--profile {}", folder_.path()), 12, " is a directory");
  expect("--steps 0 --profile " + at("p.json"), 2, "error: --profile has nothing to time in 0");
  // What was trained is saved all the same.
  expect("--profile /dev/full --save " + at("saved"), 12, "saved ");
  const std::string one_rank =
      piper_run("--steps 4 $([ $RANK = 0 ] && echo --profile " + at("p.json") + ")");
  const auto [code, output] =
      run_shell("(" + as_processes(2, torch_variables(2, free_port()), one_rank) + ") 2>&1");
  EXPECT_EQ(code, 1) << output;
  EXPECT_NE(output.find("rank 1 runs with --profile not given, rank 0 with --profile given"),
            std::string::npos)
      << output;
}

}  // namespace
}  // namespace piper::profile_test
