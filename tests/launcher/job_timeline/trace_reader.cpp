#include "tests/launcher/job_timeline/trace_reader.h"

#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include <gtest/gtest.h>

namespace paceline::launcher {

using nlohmann::json;

std::string read_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::vector<json> strict_spans(const std::string& path) {
  const json trace = json::parse(read_text(path));
  EXPECT_EQ(trace.size(), 3u);
  EXPECT_EQ(trace.at("displayTimeUnit"), "ms");
  EXPECT_GE(trace.at("otherData").at("clock_error_us").get<double>(), 0);
  std::set<std::pair<int, int>> named;
  std::set<int> processes;
  std::map<std::pair<int, int>, double> ends;
  std::vector<json> spans;
  for (const json& event : trace.at("traceEvents")) {
    const std::string kind = event.at("ph");
    const int process = event.at("pid").get<int>();
    if (kind == "M") {
      const std::string name = event.at("name");
      if (name == "process_name") processes.insert(process);
      if (name == "thread_name") named.emplace(process, event.at("tid").get<int>());
      EXPECT_TRUE(event.at("args").contains(name.ends_with("_name") ? "name" : "sort_index"));
      continue;
    }
    const auto track = std::pair(process, event.at("tid").get<int>());
    if (kind == "s" || kind == "f") {  // one end of an arrow, which begins with the span before it
      EXPECT_TRUE(event.at("id").is_string() && event.at("cat").is_string()) << event;
      EXPECT_EQ(event.at("ts"), spans.back().at("ts")) << event;
      EXPECT_EQ(track,
                std::pair(spans.back().at("pid").get<int>(), spans.back().at("tid").get<int>()));
      continue;
    }
    EXPECT_EQ(kind, "X");
    EXPECT_TRUE(named.contains(track) && processes.contains(process)) << event;
    const double begin = event.at("ts").get<double>();
    const double length = event.at("dur").get<double>();
    EXPECT_GE(begin, 0) << event;
    EXPECT_GE(length, 0) << event;
    EXPECT_GE(begin, ends[track] - 1e-6) << event;
    ends[track] = begin + length;
    EXPECT_TRUE(event.at("name").is_string() && event.at("args").is_object());
    spans.push_back(event);
  }
  return spans;
}

}  // namespace paceline::launcher
