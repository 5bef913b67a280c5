#include <algorithm>
#include <cmath>
#include <random>
#include <vector>

#include <fmt/format.h>

#include "examples/train_recommender/clicks.h"

namespace train_recommender {
namespace {

constexpr std::int64_t kDense = 4, kFactors = 8;

std::uint64_t mix(std::uint64_t x) {  // the finalizer of SplitMix64
  x += 0x9e37'79b9'7f4a'7c15;
  x = (x ^ (x >> 30)) * 0xbf58'476d'1ce4'e5b9;
  x = (x ^ (x >> 27)) * 0x94d0'49bb'1331'11eb;
  return x ^ (x >> 31);
}

// Draws the number of an id, 0 being the most frequent id of its field. The probability of number k
// is proportional to (k + 1)^-skew.
class PowerLaw {
 public:
  PowerLaw(std::int64_t count, double skew) : sums_(count) {
    double sum = 0;
    for (std::int64_t i = 0; i < count; ++i)
      sums_[i] = sum += std::pow(static_cast<double>(i + 1), -skew);
  }
  std::int64_t draw(std::mt19937_64& random) const {
    const double at = std::uniform_real_distribution<double>(0, sums_.back())(random);
    const auto found = std::upper_bound(sums_.begin(), sums_.end(), at);
    return std::min<std::int64_t>(found - sums_.begin(), std::ssize(sums_) - 1);
  }

 private:
  std::vector<double> sums_;
};

// The teacher's values of the ids, [field][number of the id], and of the dense features.
struct Teacher {
  explicit Teacher(const SyntheticOptions& options)
      : weights(options.fields * options.rows),
        factors(options.fields * options.rows * kFactors),
        dense(kDense) {
    std::mt19937_64 random(mix(options.seed));
    std::normal_distribution<float> normal;
    for (float& weight : weights) weight = 0.5F * normal(random);
    const float scale = 0.7F / std::sqrt(std::sqrt(static_cast<float>(kFactors)));
    for (float& factor : factors) factor = scale * normal(random);
    for (float& weight : dense) weight = 0.4F * normal(random);
  }

  std::vector<float> weights, factors, dense;
};

Clicks draw(const SyntheticOptions& options, const Teacher& teacher, const PowerLaw& law,
            std::int64_t samples, std::uint64_t seed, at::Tensor& probabilities) {
  Clicks clicks{at::empty({samples, kDense}), at::empty({samples, options.fields}, at::kLong),
                at::empty({samples})};
  probabilities = at::empty({samples});
  std::mt19937_64 random(mix(seed));
  std::normal_distribution<float> normal;
  std::uniform_real_distribution<float> uniform;
  auto* const dense = clicks.dense.data_ptr<float>();
  auto* const ids = clicks.ids.data_ptr<std::int64_t>();
  for (std::int64_t sample = 0; sample < samples; ++sample) {
    float logit = -0.5F;
    for (std::int64_t i = 0; i < kDense; ++i) {
      const float value = dense[sample * kDense + i] = normal(random);
      logit += teacher.dense[i] * value;
    }
    float sum[kFactors] = {}, squares = 0;
    for (std::int64_t field = 0; field < options.fields; ++field) {
      const std::int64_t number = law.draw(random), at = field * options.rows + number;
      ids[sample * options.fields + field] =
          field_id(field, mix(static_cast<std::uint64_t>(number)));
      logit += teacher.weights[at];
      for (std::int64_t j = 0; j < kFactors; ++j) {
        const float factor = teacher.factors[at * kFactors + j];
        sum[j] += factor;
        squares += factor * factor;
      }
    }
    // Twice the sum of the products of all pairs of fields.
    float products = -squares;
    for (const float each : sum) products += each * each;
    logit += 0.5F * products / std::sqrt(static_cast<float>(options.fields));
    const float probability = 1 / (1 + std::exp(-logit));
    probabilities.data_ptr<float>()[sample] = probability;
    clicks.labels.data_ptr<float>()[sample] = uniform(random) < probability ? 1.0F : 0.0F;
  }
  return clicks;
}

}  // namespace

std::int64_t field_id(std::int64_t field, std::uint64_t value) {
  return static_cast<std::int64_t>(mix(value * 1024 + static_cast<std::uint64_t>(field)));
}

ClickData make_clicks(const SyntheticOptions& options) {
  const Teacher teacher(options);
  const PowerLaw law(options.rows, options.skew);
  ClickData data{.name = fmt::format("synthetic clicks, skew {}", options.skew)};
  at::Tensor probabilities;
  data.training = draw(options, teacher, law, options.samples, options.seed * 2 + 1, probabilities);
  data.testing =
      draw(options, teacher, law, options.samples / 5, options.seed * 2 + 2, probabilities);
  data.best_auc = area_under_curve(probabilities, data.testing.labels);
  return data;
}

}  // namespace train_recommender
