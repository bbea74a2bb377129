// What the fuzzers feed: one function for each kind of file that Piper reads. None may crash, leak,
// or take memory or time that its input does not justify; an error is an answer. The fuzzer program
// (libfuzzer.cc) runs one of them under libFuzzer; hostile_test runs all on the inputs that fuzzing
// found (tests/data/hostile/NAME/) and on random changes of ordinary files.
#pragma once

#include <map>
#include <random>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace piper::fuzz {

void run_onnx(std::string_view model);     // import, then compile
void run_strategy(std::string_view yaml);  // parse, expand its orders, compile a small model
void run_order(std::string_view program);  // order programs
void run_plan(std::string_view role);      // a serialised role program: decode, print, verify
std::string why_not_read(std::string_view role);  // the error of its reading, empty for none
void run_plan_text(
    std::string_view roles);  // the text form of one or several roles: parse, check, verify
void run_plan_set(std::string_view file);  // one file of a plan set, its first byte says which
void run_kernel(std::string_view use);     // one use of an op, on the CPU backend
std::string why_not_run(std::string_view role);  // the error, empty where it ran
void run_run(std::string_view role);   // the text form of a role for one rank, run for two steps
void run_data(std::string_view file);  // safetensors, .npy or tokens, its first byte says which
void run_checkpoint(std::string_view file);  // checkpoint.json, what a header says of parts, or a
                                             // whole file: its first byte says which

// A changed input that is still a message of its kind, or the input when it is none.
std::string change_onnx(std::string_view model, std::mt19937& random);
std::string change_plan(std::string_view role, std::mt19937& random);
std::string change_kernel(std::string_view use, std::mt19937& random);
std::string change_run(std::string_view role, std::mt19937& random);
// A few bytes overwritten, inserted, deleted or repeated.
std::string change_bytes(std::string_view input, std::mt19937& random);

struct Target {
  const char* name;
  void (*run)(std::string_view input);
  std::string (*change)(std::string_view input, std::mt19937& random);
};
std::span<const Target> targets();

// By target. Models give windows of a few nodes (whole ones would be slow); small ones are taken
// whole, too, and compiled to plans.
using Seeds = std::map<std::string, std::vector<std::string>>;
Seeds make_seeds(const std::vector<std::string>& strategies,
                 const std::vector<std::string>& models);

std::vector<std::string> kernel_seeds();

// A folder for the files of this process, removed when it ends. Made once for each target.
class Folder {
 public:
  explicit Folder(std::string_view name);
  ~Folder();
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  std::string path(std::string_view file) const { return path_ + "/" + std::string(file); }
  std::string write(std::string_view file, std::string_view bytes) const;  // its path

 private:
  std::string path_;
};

}  // namespace piper::fuzz
