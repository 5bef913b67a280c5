#include <fstream>
#include <map>
#include <random>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "paceline/engine/core/check.h"
#include "paceline/engine/core/error.h"

#include "examples/train_recommender/clicks.h"

namespace train_recommender {
namespace {

std::vector<std::string> split(const std::string& line, char separator) {
  std::vector<std::string> parts;
  std::size_t begin = 0;
  for (std::size_t end; (end = line.find(separator, begin)) != std::string::npos; begin = end + 1)
    parts.push_back(line.substr(begin, end - begin));
  parts.push_back(line.substr(begin));
  return parts;
}

// The lines of a table of tab-separated values after its heading, each with `columns` values.
std::vector<std::vector<std::string>> read_table(const std::string& path, std::size_t columns) {
  std::ifstream file(path);
  if (!file) {
    paceline::fail(paceline::ErrorCode::kSystem,
                   "cannot read {}; docs/tables.md shows how to get MovieLens-100k", path);
  }
  std::vector<std::vector<std::string>> table;
  std::string line;
  std::getline(file, line);
  for (std::size_t number = 2; std::getline(file, line); ++number) {
    if (line.ends_with('\r')) line.pop_back();
    table.push_back(split(line, '\t'));
    paceline::check(table.back().size() == columns, "{}, line {}: {} columns instead of {}", path,
                    number, table.back().size(), columns);
  }
  return table;
}

float number_in(const std::string& text) {
  try {
    return std::stof(text);
  } catch (const std::exception&) {
    return 0;  // an unknown year
  }
}

// A value of a field as a number.
std::uint64_t value_of(const std::string& text) { return std::hash<std::string>()(text); }

struct User {
  std::vector<std::uint64_t> values;  // id, age, gender, occupation, region
  float age = 0;
};
struct Movie {
  std::vector<std::uint64_t> values;  // id, year
  std::vector<std::string> genres;
  float year = 0;
};

}  // namespace

ClickData read_movielens(const std::string& folder, std::uint64_t seed) {
  std::unordered_map<std::string, User> users;
  for (const auto& row : read_table(folder + "/ml-100k.user", 5)) {
    const float age = number_in(row[1]);
    users[row[0]] = {{value_of(row[0]), static_cast<std::uint64_t>(age / 5), value_of(row[2]),
                      value_of(row[3]), value_of(row[4].substr(0, 2))},
                     age};
  }
  std::unordered_map<std::string, Movie> movies;
  std::map<std::string, std::int64_t> genres;
  for (const auto& row : read_table(folder + "/ml-100k.item", 4)) {
    movies[row[0]] = {{value_of(row[0]), value_of(row[2])}, split(row[3], ' '), number_in(row[2])};
    for (const auto& genre : movies[row[0]].genres) genres.emplace(genre, std::ssize(genres));
  }
  const std::string path = folder + "/ml-100k.inter";
  const auto ratings = read_table(path, 4);
  const auto samples = std::ssize(ratings);
  paceline::check(samples > 0, "{} has no ratings", path);
  Clicks all{at::zeros({samples, 2 + std::ssize(genres)}), at::empty({samples, 7}, at::kLong),
             at::empty({samples})};
  auto dense = all.dense.accessor<float, 2>();
  auto ids = all.ids.accessor<std::int64_t, 2>();
  auto labels = all.labels.accessor<float, 1>();
  for (std::int64_t i = 0; i < samples; ++i) {
    const auto user = users.find(ratings[i][0]);
    const auto movie = movies.find(ratings[i][1]);
    paceline::check(user != users.end() && movie != movies.end(),
                    "{}, line {}: user {} or item {} is unknown", path, i + 2, ratings[i][0],
                    ratings[i][1]);
    dense[i][0] = (user->second.age - 30) / 10;
    dense[i][1] = (movie->second.year - 1990) / 10;
    for (const auto& genre : movie->second.genres) dense[i][2 + genres[genre]] = 1;
    std::int64_t field = 0;
    for (const auto* const values : {&user->second.values, &movie->second.values})
      for (const std::uint64_t value : *values) {
        ids[i][field] = field_id(field, value);
        ++field;
      }
    labels[i] = number_in(ratings[i][2]) >= 4 ? 1.0F : 0.0F;
  }
  std::mt19937_64 random(seed);
  std::vector<std::int64_t> training, testing;
  for (std::int64_t i = 0; i < samples; ++i) (random() % 10 == 0 ? testing : training).push_back(i);
  return {.name = "MovieLens-100k",
          .training = all.select(torch::tensor(training, at::kLong)),
          .testing = all.select(torch::tensor(testing, at::kLong))};
}

}  // namespace train_recommender
