#include "examples/table_job.h"

#include <limits>
#include <utility>

#include <fmt/format.h>

#include "paceline/engine/collectives/group/object_collectives.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/rendezvous/launch_environment.h"
#include "paceline/engine/store/memory_store.h"

#include "apps/cli/option_value.h"

namespace table_job {

namespace rpc = paceline::rpc;
namespace tables = paceline::tables;

TableJob::TableJob(const std::shared_ptr<paceline::ProcessGroup>& world) {
  const paceline::LaunchEnvironment launch = paceline::detect_launch_environment();
  is_server_ = launch.role == "server";
  const int num_servers = paceline::all_reduce_value(*world, is_server_ ? 1 : 0);
  paceline::check(num_servers < world->world_size(),
                  "the job has {} servers and no trainer; start it with --roles "
                  "trainer=2,server={} --until trainer",
                  num_servers, num_servers);
  for (int i = 0; i < num_servers; ++i) servers_.push_back(fmt::format("server{}", i));
  trainers_ = num_servers == 0 ? world : world->split(is_server_ ? 1 : 0, launch.role_rank);

  rpc::JoinOptions options;
  if (launch.launcher == "none") {
    options.store = std::make_shared<paceline::MemoryStore>();
    options.secret = paceline::Secret::generate();
  }
  if (is_server_) options.prepare = [this](rpc::Workers& self) { held_.serve(self); };
  const int number = is_server_ ? launch.role_rank : trainers_->rank();
  workers_ = rpc::join(fmt::format("{}{}", is_server_ ? "server" : "trainer", number), options);
}

void TableJob::serve() { workers_->wait_until_gone("trainer0"); }

std::unique_ptr<tables::Rows> TableJob::open_rows(const std::string& name,
                                                  const tables::RowOptions& options) const {
  return tables::Tables(*workers_).open_rows(name, options, {.servers = servers_});
}

std::unique_ptr<tables::DenseTable> TableJob::open_dense(
    const std::string& name, std::vector<at::Tensor> parameters,
    const tables::DenseOptions& options) const {
  tables::Tables all(*workers_);
  return std::make_unique<tables::DenseTable>(all, name, std::move(parameters), options,
                                              tables::TableOptions{.servers = servers_});
}

std::string TableJob::place() const {
  if (servers_.empty()) return "in this host's memory";
  return fmt::format("on {} server{}", servers_.size(), servers_.size() == 1 ? "" : "s");
}

tables::Consistency consistency_in(const std::string& text) {
  constexpr const char* kBounded = "bounded:";
  if (text == "synchronous") return tables::Consistency::synchronous();
  if (text == "asynchronous") return tables::Consistency::asynchronous();
  if (text.starts_with(kBounded)) {
    const std::string bound = text.substr(std::string(kBounded).size());
    return tables::Consistency::bounded(static_cast<std::uint32_t>(paceline::apps::whole_number(
        "--consistency", bound, 0, std::numeric_limits<std::int32_t>::max(), "", kBounded)));
  }
  paceline::apps::refuse_value("--consistency", text,
                               "one of synchronous, bounded:S, asynchronous");
}

}  // namespace table_job
