#pragma once

// Metrics of a run as JSON lines: one object a line, appended and flushed line by line, so that a
// killed run keeps what it wrote.
//
// Thread safety: none. A full disk costs the metrics, not the training: after the first failed
// write one warning is logged and the rest is dropped.

#include <cstdio>
#include <initializer_list>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace paceline {

class MetricsLog {
 public:
  using Value = std::variant<double, std::int64_t, std::string>;
  using Field = std::pair<std::string, Value>;

  // Writes nothing.
  MetricsLog() = default;
  // Appends to `path`, creating it. Error(kSystem) names the path.
  explicit MetricsLog(const std::string& path);

  // {"event":"step","step":10,"loss":0.5}: the fields in the given order. Numbers that JSON cannot
  // express become null.
  void write(const std::string& event, std::initializer_list<Field> fields);
  void write(const std::string& event, const std::vector<Field>& fields);

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  std::unique_ptr<std::FILE, Close> file_;
  std::string path_;
};

}  // namespace paceline
