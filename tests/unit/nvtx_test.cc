// What a tool is told that NVTX_INJECTION64_PATH names: a range for each step and, in it, for each
// instruction, on whatever thread. And what is said where there is none.
#include <gtest/gtest.h>

#include <map>
#include <sstream>

#include "folder.h"
#include "sanitizer.h"
#include "shell.h"
#include "unit/runtime_plans.h"

namespace piper {
namespace {

using namespace plans;  // NOLINT: the fixtures of this test

class Tools : public testing::Test {
 protected:
  std::string at(const char* name) const { return folder_.path() + "/" + name; }
  void write(const PlanSet& set) {
    ASSERT_TRUE(write_plan_set(set, nullptr, nullptr, at("plans"), {.force = true}));
    std::vector<NamedTensor> batch;
    const std::vector<float> numbers(64, 0.5f);
    const auto needs = data_needs(set);
    ASSERT_TRUE(needs.ok());
    for (const InputNeed& need : *needs)
      batch.push_back({"batch/0/" + need.name, need.type,
                       Bytes::copy_of(numbers.data(), static_cast<size_t>(need.type.bytes()))});
    ASSERT_TRUE(write_safetensors(at("data.safetensors"), batch));
  }
  std::string run(const std::string& variables, const std::string& flags) {
    const auto [code, output] =
        run_shell(fmt::format("env {} {}/bin/piper-run {} --data {} --threads 1 {} 2>&1", variables,
                              PIPER_BINARY_DIR, at("plans"), at("data.safetensors"), flags));
    EXPECT_EQ(code, 0) << output;
    return output;
  }
  // Lines of the tool by thread.
  std::map<std::string, std::vector<std::string>> told(const std::string& flags) {
    run(fmt::format("NVTX_INJECTION64_PATH={} NVTX_TOOL_LOG={}", PIPER_NVTX_TOOL, at("log")),
        flags);
    std::map<std::string, std::vector<std::string>> lines;
    std::ifstream log(at("log"));
    for (std::string what, thread, rest; log >> what >> thread && std::getline(log, rest);)
      lines[thread].push_back(what + rest);
    std::filesystem::remove(at("log"));
    return lines;
  }

  Folder folder_;
};

// Names of ranges of a thread's lines, "step 2: x, gradient"; what does not nest is said.
std::vector<std::string> steps_of(const std::vector<std::string>& lines) {
  std::vector<std::string> steps, open;
  for (const std::string& line : lines) {
    if (line == "end piper") {
      if (open.empty()) return {"an end without a beginning"};
      open.pop_back();
      continue;
    }
    const std::string name = line.substr(line.find(' ') + 1);
    if (name.starts_with("piper/step/step "))
      steps.push_back(name.substr(11) + ":");
    else if (open.empty() && steps.empty())
      steps.push_back(name);
    else
      steps.back() += " " + name;
    open.push_back(name);
    if (open.size() > 2) return {"ranges in ranges of instructions: " + name};
  }
  if (!open.empty()) return {"no end of " + open.back()};
  return steps;
}

std::string names_of(const std::vector<Instruction>& body) {
  std::string names;
  for (const Instruction& one : body)
    names += fmt::format(" piper/{}/{}", to_string(one.kind), one.label);
  return names;
}

TEST_F(Tools, AreToldOfStepsAndTheirInstructions) {
  const PlanSet set = pipeline(2);
  write(set);
  const auto lines = told("--steps 3 --helper-thread off");
  ASSERT_EQ(lines.size(), 2u);  // a thread for each rank
  std::multiset<std::string> expected, got;
  for (const RoleProgram& role : set.roles) expected.insert(names_of(role.body));
  for (const auto& [thread, of] : lines) {
    const std::vector<std::string> steps = steps_of(of);
    ASSERT_EQ(steps.size(), 3u) << testing::PrintToString(of);
    for (int step = 1; step <= 3; ++step)
      EXPECT_EQ(steps[step - 1].substr(0, 7), fmt::format("step {}:", step));
    got.insert(steps[1].substr(7));
  }
  EXPECT_EQ(got, expected);
  // Controls: what does not nest is seen.
  std::vector<std::string> wrong = lines.begin()->second;
  wrong.pop_back();
  EXPECT_EQ(steps_of(wrong).size(), 1u);
  wrong.insert(wrong.begin(), "end piper");
  EXPECT_EQ(steps_of(wrong)[0], "an end without a beginning");
}

// An instruction's range is on the thread that does it.
TEST_F(Tools, AreToldOfTheHelpersInstructions) {
  write(meanwhile());
  const auto alone = told("--steps 2 --helper-thread off"),
             two = told("--steps 2 --helper-thread on");
  EXPECT_GT(two.size(), alone.size());
  const auto count = [](const auto& lines) {
    std::multiset<std::string> all;
    for (const auto& [thread, of] : lines)
      for (const std::string& line : of) all.insert(line);
    return all;
  };
  EXPECT_EQ(count(two), count(alone));
}

TEST_F(Tools, ThatCannotListenCostNothingButALine) {
  write(pipeline(2));
  const auto says = [&](const std::string& variables, const std::string& what) {
    const std::string output = run(variables, "--steps 1");
    if (what.empty())
      EXPECT_EQ(output.find("no tool is told"), std::string::npos) << output;
    else
      EXPECT_NE(output.find("no tool is told of ranges: NVTX_INJECTION64_PATH: " + what),
                std::string::npos)
          << output;
  };
  const std::string log = " NVTX_TOOL_LOG=" + at("log");
  says(log, "");
  says("NVTX_INJECTION64_PATH=" + log, "");
  EXPECT_FALSE(std::filesystem::exists(at("log")));
  says("NVTX_INJECTION64_PATH=/nowhere/tool.so" + log, "/nowhere/tool.so: cannot open");
  says(fmt::format("NVTX_INJECTION64_PATH={} NVTX_TOOL_SLEEPS=1{}", PIPER_NVTX_TOOL, log),
       PIPER_NVTX_TOOL " does not listen");
  says("NVTX_INJECTION64_PATH=libdl.so.2" + log, "libdl.so.2 has no InitializeInjectionNvtx2");
  EXPECT_FALSE(std::filesystem::exists(at("log")));
  EXPECT_FALSE(told("--steps 1").empty());
}

}  // namespace
}  // namespace piper
