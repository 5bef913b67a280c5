// The names of workers that do not choose a name.

#include <cstdlib>

#include "tests/engine/rpc/job.h"

namespace paceline::rpc {
namespace {

using namespace testing_job;

using Variables = std::vector<std::pair<std::string, std::string>>;

const std::vector<std::string> kAll = {
    "RANK",      "WORLD_SIZE",          "LOCAL_RANK",           "LOCAL_WORLD_SIZE",    "ROLE_NAME",
    "ROLE_RANK", "TORCHELASTIC_RUN_ID", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"};

void set_variables(const Variables& variables) {
  for (const auto& name : kAll) unsetenv(name.c_str());
  for (const auto& [name, value] : variables) setenv(name.c_str(), value.c_str(), 1);
}

Variables launched(int rank, const std::string& role = "", int role_rank = 0) {
  Variables all = {
      {"RANK", std::to_string(rank)}, {"WORLD_SIZE", "6"}, {"TORCHELASTIC_RUN_ID", "x"}};
  if (!role.empty()) {
    all.emplace_back("ROLE_NAME", role);
    all.emplace_back("ROLE_RANK", std::to_string(role_rank));
  }
  return all;
}

TEST(Join, a_worker_is_named_after_its_role_and_number) {
  const Variables open_mpi = {{"OMPI_COMM_WORLD_RANK", "2"}, {"OMPI_COMM_WORLD_SIZE", "4"}};
  struct Row {
    Variables variables;
    std::string asked_role;
    std::string name, role;
  };
  const std::vector<Row> rows = {
      {launched(3, "observer", 1), "", "observer1", "observer"},
      {launched(3, "default", 3), "", "worker3", "worker"},
      {launched(3), "", "worker3", "worker"},
      {launched(3), "server", "server3", "server"},
      {launched(3, "observer", 1), "observer", "observer1", "observer"},
      {launched(3, "observer", 1), "server", "server3", "server"},
      {open_mpi, "", "worker2", "worker"},
      {open_mpi, "server", "server2", "server"},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    set_variables(row.variables);
    const Job job;
    JoinOptions options = job.options();
    options.role = row.asked_role;
    const auto worker = join(options);
    EXPECT_EQ(worker->name(), row.name);
    EXPECT_EQ(worker->list().front().role, row.role);
  }
}

TEST(Join, a_worker_with_a_name_has_the_launchers_role_too) {
  Job job;
  JoinOptions options = job.options();
  options.role.clear();
  set_variables(launched(3, "observer", 1));
  EXPECT_EQ(job.join("eye", options)->list().front().role, "observer");
  set_variables({});
  EXPECT_EQ(job.join("ear", options)->list().front().role, "worker");
}

TEST(Join, without_a_launcher_a_name_is_needed) {
  set_variables({});
  const Job job;
  expect_error(ErrorCode::kInvalid,
               {"no launcher sets the rank of this process", "join(\"trainer0\""},
               [&] { join(job.options()); });
}

}  // namespace
}  // namespace paceline::rpc
