// Draws nested boxes: cores in caches, caches in NUMA nodes, nodes in packages. The size of every
// box is computed here, so that the box around it can be drawn without a browser's measurements.

#include <algorithm>
#include <array>
#include <string>
#include <vector>

#include <fmt/format.h>

#include "paceline/engine/core/system/topology.h"
#include "paceline/launcher/placement/machine_map.h"

namespace paceline::launcher {
namespace {

constexpr int kCoreWidth = 58, kCoreHeight = 46;
constexpr int kGap = 6, kPadding = 10, kTitleHeight = 20;
constexpr int kPageWidth = 1080;  // boxes that do not fit go into the next row
constexpr int kLineHeight = 19;
constexpr int kCharacterWidth = 7;  // of the 11.5 px monospace text, rounded up
constexpr std::size_t kMaxRanksListed = 64;

// Fill colours that differ in hue and lightness, so that colour-blind readers can also tell them
// apart (after Okabe and Ito, lightened so that black text is readable on each).
constexpr std::array kFills = {"#8ecae6", "#f4b266", "#90c987", "#f2e268", "#d5a6bd", "#7fb3d5",
                               "#e59866", "#76d7c4", "#c9b1e6", "#d7dbdd", "#f5b7b1", "#b9d77a"};

struct Box {
  int width = 0, height = 0;
  std::string svg;  // its origin is the box's upper left corner
};

std::string escaped(const std::string& text) {
  std::string safe;
  for (const char c : text) {
    safe += c == '<' ? "&lt;" : c == '>' ? "&gt;" : c == '&' ? "&amp;" : std::string(1, c);
  }
  return safe;
}

std::string text_at(int x, int y, const std::string& text, const char* style = "") {
  return fmt::format("<text x=\"{}\" y=\"{}\"{}>{}</text>\n", x, y, style, escaped(text));
}

std::string moved(const Box& box, int x, int y) {
  return fmt::format("<g transform=\"translate({},{})\">\n{}</g>\n", x, y, box.svg);
}

// Arranges boxes from left to right, in rows.
Box flow(const std::vector<Box>& boxes, int most_width) {
  Box all;
  int x = 0, y = 0, row_height = 0;
  for (const Box& box : boxes) {
    if (x > 0 && x + box.width > most_width) {
      x = 0;
      y += row_height + kGap;
      row_height = 0;
    }
    all.svg += moved(box, x, y);
    row_height = std::max(row_height, box.height);
    all.width = std::max(all.width, x + box.width);
    x += box.width + kGap;
  }
  all.height = y + row_height;
  return all;
}

Box frame(const std::string& title, const Box& inner, const char* fill) {
  Box box;
  const int title_width = static_cast<int>(title.size()) * kCharacterWidth;
  box.width = std::max(inner.width, title_width) + 2 * kPadding;
  box.height = inner.height + kTitleHeight + 2 * kPadding;
  box.svg =
      fmt::format("<rect width=\"{}\" height=\"{}\" rx=\"5\" fill=\"{}\" stroke=\"#5d6d7e\"/>\n",
                  box.width, box.height, fill);
  box.svg += text_at(kPadding, kPadding + 9, title);
  box.svg += moved(inner, kPadding, kPadding + kTitleHeight);
  return box;
}

const char* fill_of(const MappedCore& core, bool has_ranks) {
  if (!core.is_given()) return "url(#not-given)";
  if (!has_ranks || core.ranks.empty()) return "#ffffff";
  return kFills[static_cast<std::size_t>(core.ranks.front()) % kFills.size()];
}

std::string cpus_text(const MappedCore& core) {
  std::vector<int> cpus;
  for (std::size_t i = 0; i < core.core.cpus.size(); ++i) {
    if (core.given[i] || !core.is_given()) cpus.push_back(core.core.cpus[i]);
  }
  if (cpus.size() == 2) return fmt::format("{} {}", cpus[0], cpus[1]);
  const std::string text = format_cpu_list(cpus);
  return text.size() <= 8 ? text : fmt::format("{}+{}", cpus.front(), cpus.size() - 1);
}

Box draw_core(const MappedCore& core, bool has_ranks) {
  Box box{kCoreWidth, kCoreHeight, ""};
  box.svg =
      fmt::format("<rect width=\"{}\" height=\"{}\" rx=\"3\" fill=\"{}\" stroke=\"#2c3e50\"{}/>\n",
                  kCoreWidth, kCoreHeight, fill_of(core, has_ranks),
                  core.core.speed < 1 ? " stroke-dasharray=\"4 3\"" : "");
  constexpr const char* kSmall = " text-anchor=\"middle\" font-size=\"11\" fill=\"#34495e\"";
  constexpr const char* kLarge = " text-anchor=\"middle\" font-weight=\"bold\"";
  std::string owner = has_ranks ? core.rank_text() : "";
  if (!owner.empty()) owner = owner.size() > 4 ? owner : "r" + owner;
  box.svg += text_at(kCoreWidth / 2, 18, owner, kLarge);
  box.svg += text_at(kCoreWidth / 2, 37, cpus_text(core), kSmall);
  return box;
}

Box draw_machine(const Topology& topology, const Placement* placement) {
  const bool has_ranks = placement != nullptr && placement->bound;
  constexpr int kRoom = kPageWidth - 6 * kPadding;
  std::vector<Box> packages;
  for (const MappedPackage& package : map_machine(topology, placement)) {
    std::vector<Box> nodes;
    for (const MappedNode& node : package.nodes) {
      std::vector<Box> caches;
      for (const MappedCache& cache : node.caches) {
        std::vector<Box> cores;
        for (const MappedCore& core : cache.cores) cores.push_back(draw_core(core, has_ranks));
        caches.push_back(frame(cache.name.empty() ? "cores" : cache.name,
                               flow(cores, 8 * (kCoreWidth + kGap)), "#ffffff"));
      }
      nodes.push_back(frame(node.name, flow(caches, kRoom), "#eef3f7"));
    }
    packages.push_back(frame(package.name, flow(nodes, kRoom + 2 * kPadding), "#dde6ed"));
  }
  return flow(packages, kPageWidth);
}

// Draws a sample of each kind of box that occurs, with its meaning.
Box draw_key(const Topology& topology, const Placement* placement) {
  const bool has_ranks = placement != nullptr && placement->bound;
  std::vector<Box> samples;
  auto add = [&](const char* fill, const char* extra, const std::string& text) {
    const int width = 26 + static_cast<int>(text.size()) * kCharacterWidth + 2 * kGap;
    samples.push_back({width, kLineHeight,
                       fmt::format("<rect y=\"2\" width=\"18\" height=\"13\" rx=\"2\" fill=\"{}\" "
                                   "stroke=\"#2c3e50\"{}/>\n",
                                   fill, extra) +
                           text_at(26, 13, text)});
  };
  add("#ffffff", "", has_ranks ? "given, no rank" : "given");
  if (!topology.other_cores.empty()) add("url(#not-given)", "", "not given to this process");
  if (std::any_of(topology.cores.begin(), topology.cores.end(),
                  [](const Core& core) { return core.speed < 1; })) {
    add("#ffffff", " stroke-dasharray=\"4 3\"", "slower core");
  }
  return flow(samples, kPageWidth);
}

Box draw_ranks(const Placement& placement) {
  std::vector<Box> lines;
  std::size_t longest = 0;
  std::vector<std::string> texts;
  for (std::size_t rank = 0; rank < std::min(placement.ranks.size(), kMaxRanksListed); ++rank) {
    texts.push_back(
        describe_placement(static_cast<int>(rank), placement.ranks[rank], placement.bound));
    longest = std::max(longest, texts.back().size());
  }
  const int width = 26 + static_cast<int>(longest) * kCharacterWidth + 2 * kGap;
  for (std::size_t rank = 0; rank < texts.size(); ++rank) {
    const char* fill = placement.bound ? kFills[rank % kFills.size()] : "#ffffff";
    lines.push_back({width, kLineHeight - kGap,
                     fmt::format("<rect y=\"2\" width=\"18\" height=\"13\" rx=\"2\" fill=\"{}\" "
                                 "stroke=\"#2c3e50\"/>\n",
                                 fill) +
                         text_at(26, 13, texts[rank])});
  }
  if (placement.ranks.size() > kMaxRanksListed) {
    lines.push_back(
        {width, kLineHeight - kGap,
         text_at(26, 13, fmt::format("and {} more", placement.ranks.size() - kMaxRanksListed))});
  }
  Box box = flow(lines, kPageWidth);
  box.height += kGap;
  return box;
}

Box draw_lines(const std::vector<std::string>& lines) {
  Box box;
  for (const std::string& line : lines) {
    box.svg += text_at(0, box.height + 13, line);
    box.height += kLineHeight;
    box.width = std::max(box.width, static_cast<int>(line.size()) * kCharacterWidth);
  }
  return box;
}

}  // namespace

std::string draw_machine_svg(const Topology& topology, const Placement* placement) {
  std::vector<Box> rows = {draw_lines({describe_machine(topology)}),
                           draw_machine(topology, placement), draw_key(topology, placement)};
  if (placement != nullptr) {
    rows.push_back(draw_ranks(*placement));
    rows.push_back(draw_lines(placement->reasons));
  }
  constexpr int kMargin = 16;
  int width = 0, y = kMargin;
  std::string body;
  for (const Box& row : rows) {
    body += moved(row, kMargin, y);
    y += row.height + 2 * kGap;
    width = std::max(width, row.width);
  }
  width += 2 * kMargin;
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" "
      "viewBox=\"0 0 {0} {1}\" font-family=\"DejaVu Sans Mono, Menlo, Consolas, monospace\" "
      "font-size=\"11.5\">\n"
      "<defs><pattern id=\"not-given\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" "
      "patternTransform=\"rotate(45)\"><rect width=\"6\" height=\"6\" fill=\"#ecf0f1\"/>"
      "<rect width=\"2\" height=\"6\" fill=\"#bdc3c7\"/></pattern></defs>\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n{2}</svg>\n",
      width, y, body);
}

}  // namespace paceline::launcher
