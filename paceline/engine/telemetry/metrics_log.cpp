#include "paceline/engine/telemetry/metrics_log.h"

#include "paceline/engine/core/error.h"
#include "paceline/engine/core/json_text.h"
#include "paceline/engine/core/log.h"

namespace paceline {

MetricsLog::MetricsLog(const std::string& path)
    : file_(std::fopen(path.c_str(), "ae")), path_(path) {
  if (!file_) throw system_error("opening the metrics file " + path);
}

void MetricsLog::write(const std::string& event, std::initializer_list<Field> fields) {
  write(event, std::vector<Field>(fields));
}

void MetricsLog::write(const std::string& event, const std::vector<Field>& fields) {
  if (!file_) return;
  nlohmann::ordered_json line;
  line["event"] = event;
  for (const auto& field : fields) {
    std::visit([&](const auto& value) { line[field.first] = value; }, field.second);
  }
  const std::string text = json_text(line) + "\n";
  if (std::fwrite(text.data(), 1, text.size(), file_.get()) != text.size() ||
      std::fflush(file_.get()) != 0) {
    log::warning("metrics are no longer written: " + std::string(system_error(path_).what()));
    file_.reset();
  }
}

}  // namespace paceline
