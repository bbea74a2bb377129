// Plans in the hands of piper-run, as threads of one process and as processes, over MPI and TCP.
#pragma once

#include "equivalence/jobs.h"
#include "shell.h"

namespace piper::jobs {

// Ranks as threads and as four processes train as the plan of one device, which must be there, and
// save the same file; returned.
inline std::string expect_processes_save_the_same(const Compiled& compiled,
                                                  const std::string& model) {
  const Folder folder;
  const auto path = [&](const char* name) { return folder.path() + "/" + name; };
  const Status written =
      write_plan_set(compiled.set, &*compiled.single, nullptr, path("plans"), {});
  EXPECT_TRUE(written) << print_error(written.error());
  const auto run = [&](const std::string& launcher, const char* save) {
    const std::string command = fmt::format(
        "{}/bin/piper-run {} --data {} --steps 5 --threads 1 --verify-against single --save {}",
        PIPER_BINARY_DIR, path("plans"), model_path(model, "reference.safetensors"), path(save));
    const auto [code, output] =
        launcher == "tcp" ? run_shell(as_processes(4, torch_variables(4, free_port()), command))
                          : run_shell(fmt::format("{}{} {}", kMpi, launcher, command));
    EXPECT_EQ(code, 0) << output;
    EXPECT_NE(output.find("equal to the single-device plan bit for bit"), std::string::npos)
        << output;
    const auto bytes = read_text_file(path(save), 1 << 28);
    EXPECT_TRUE(bytes);
    return bytes ? *bytes : "";
  };
  const std::string threads = run("", "threads.safetensors");
  EXPECT_TRUE(threads == run("mpirun -n 4", "processes.safetensors"));
  EXPECT_TRUE(threads == run("tcp", "tcp.safetensors"));
  return threads;
}

}  // namespace piper::jobs
