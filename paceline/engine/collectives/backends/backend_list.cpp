#include "paceline/engine/collectives/backends/backend_list.h"

#include <algorithm>

#include "paceline/engine/collectives/backends/library_list.h"
#include "paceline/engine/core/check.h"
#include "paceline/engine/core/option_text.h"

namespace paceline {
namespace {

BackendInfo paceline_info() {
  return {.name = "paceline",
          .device = Device::kCpu,
          .available = true,
          .text = "shared memory, TCP, loopback",
          .advice = ""};
}

std::string names_for(Device device) {
  std::string names;
  for (const BackendInfo& info : list_backends()) {
    if (info.device == device) names += (names.empty() ? "" : ", ") + info.name;
  }
  return names;
}

Device parse_device(const std::string& text, const std::string& whole) {
  if (text == "cpu") return Device::kCpu;
  if (text == "cuda") return Device::kCuda;
  fail(ErrorCode::kInvalid,
       "backend '{}': '{}' is not a device; write NAME, or cpu:NAME, or cpu:NAME,cuda:NAME", whole,
       text);
}

BackendInfo find_backend(const std::string& name, const std::string& whole) {
  for (BackendInfo& info : list_backends()) {
    if (info.name == name) return std::move(info);
  }
  fail(ErrorCode::kInvalid,
       "backend '{}': unknown backend '{}'; choose one of {} and, for cuda, {}", whole, name,
       names_for(Device::kCpu), names_for(Device::kCuda));
}

}  // namespace

std::vector<BackendInfo> list_backends() {
  std::vector<BackendInfo> all = {paceline_info()};
  for (const LibraryEntry& library : list_libraries()) all.push_back(library.info);
  return all;
}

bool is_backend_available(const std::string& name) {
  const auto all = list_backends();
  return std::any_of(all.begin(), all.end(),
                     [&](const BackendInfo& info) { return info.name == name && info.available; });
}

Error backend_missing(const BackendInfo& info) {
  return Error(ErrorCode::kUnsupported,
               fmt::format("backend '{}' is not part of this build: {}; to get it: {}", info.name,
                           info.text, info.advice));
}

std::string BackendChoice::text() const {
  return cuda.empty() ? cpu : fmt::format("cpu:{},cuda:{}", cpu, cuda);
}

BackendChoice parse_backend_choice(const std::string& text) {
  BackendChoice choice;
  if (text.empty()) return choice;
  bool has_cpu = false;
  for (const std::string_view view : split(text, ',')) {
    const std::string part(view);
    const std::size_t colon = part.find(':');
    const bool names_device = colon != std::string::npos;
    const BackendInfo info = find_backend(names_device ? part.substr(colon + 1) : part, text);
    const Device device = names_device ? parse_device(part.substr(0, colon), text) : info.device;
    check(device == info.device, "backend '{}': {} does not work on {}; backends for {}: {}", text,
          info.name, name_of(device), name_of(device), names_for(device));
    check(device == Device::kCpu ? !has_cpu : choice.cuda.empty(),
          "backend '{}': {} is named twice", text, name_of(device));
    has_cpu |= device == Device::kCpu;
    (device == Device::kCpu ? choice.cpu : choice.cuda) = info.name;
  }
  return choice;
}

}  // namespace paceline
