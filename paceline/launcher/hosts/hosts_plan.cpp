#include "paceline/launcher/hosts/hosts_plan.h"

#include <utility>

#include "paceline/engine/core/json_text.h"
#include "paceline/engine/core/system/host.h"

namespace paceline::launcher {

HostsEntry::HostsEntry(EventLoop& loop, HostsJob job, const JobSocket::Say& say)
    : job_(std::move(job)),
      socket_(
          loop, 0, 0, [this](const JobRequest& request) { answer(request); }, say) {}

void HostsEntry::answer(const JobRequest& request) const {
  const std::string what = request.words.empty() ? "" : request.words.front();
  if (what == "describe") return send_answer(request, description());
  if (what == "stop") answer_stop(request, supervisor_);
}

std::string HostsEntry::description() const {
  nlohmann::ordered_json json;
  json["job"] = job_.run_id;
  json["id_is_shared"] = false;
  json["host"] = host_name();
  json["supervisor"] = supervisor_;
  json["launcher"] = getpid();
  json["command"] = job_.command;
  json["started"] = started_;
  json["generation"] = 0;
  json["world_size"] = job_.world_size;
  json["num_local_ranks"] = 0;
  json["log_directory"] = "";
  json["flight_directory"] = "";
  json["ranks"] = nlohmann::ordered_json::array();
  json["hosts"] = job_.hosts;
  return json_text(json) + "\n";
}

}  // namespace paceline::launcher
