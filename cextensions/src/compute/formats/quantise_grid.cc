// Super-blocks of points of a grid: groups have odd multiples of the scale of the whole block, and signs are
// stored apart.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "grid_forms.h"
#include "half.h"
#include "lanes.h"
#include "quantise_super.h"

namespace moeinf {

namespace {

using namespace lanes;

constexpr int kWeights = 256;

template <class Form>
class GridFit {
 public:
  GridFit(const float* weights, const float* columns) {
    for (int g = 0; g < kGroups; ++g) {
      float energy = 0;
      top_[g] = 0;
      for (int i = g * kGroup; i < (g + 1) * kGroup; ++i) {
        magnitudes_[i] = std::fabs(weights[i]);
        signs_[i / kDims] |= (weights[i] < 0 ? 1u : 0u) << (i % kDims);
        energy += weights[i] * weights[i];
        top_[g] = std::max(top_[g], magnitudes_[i]);
      }
      const float spread = std::sqrt(energy / kGroup);  // as importance_of does
      for (int i = g * kGroup; i < (g + 1) * kGroup; ++i)
        importance_[i] = columns != nullptr ? columns[i] : spread + magnitudes_[i];
    }
    for (int i = 0; Form::kEven && i < kWeights; i += Form::kSigned) make_even(i);
    fit();
  }

  void encode(unsigned char* out) const {
    const std::uint16_t half = half_of_float(d_);
    std::memcpy(out, &half, sizeof half);
    for (int g = 0; g < kGroups; ++g) Form::put_scale(out, g, scales_[g]);
    for (int p = 0; p < kWeights / kDims; ++p) Form::put_point(out, p, points_[p], signs_[p]);
  }

 private:
  using Tree = typename Form::Tree;
  static constexpr int kGroup = Form::kGroup, kGroups = kWeights / kGroup;
  static constexpr int kDims = Tree::kDims, kPoints = kGroup / kDims;

  struct Sums {  // of importance times value times weight, and times the square of the value
    float ax, aa;
  };

  // Where an odd number of weights are negative, the one for which it costs least gets the other sign, and is
  // below zero as a magnitude.
  void make_even(int first) {
    int least = first;
    unsigned odd = 0;
    for (int i = first; i < first + Form::kSigned; ++i) {
      odd ^= signs_[i / kDims] >> (i % kDims) & 1;
      if (importance_[i] * magnitudes_[i] < importance_[least] * magnitudes_[least]) least = i;
    }
    if (odd == 0) return;
    signs_[least / kDims] ^= 1u << (least % kDims);
    magnitudes_[least] = -magnitudes_[least];
  }

  void fit() {
    float sought[kGroups], top = 0;
    for (int g = 0; g < kGroups; ++g) {
      sought[g] = search_scale(g);
      top = std::max(top, sought[g]);
    }
    d_ = float_of_half(half_of_float(top / (2 * kMostScale + 1)));
    if (d_ == 0) return;
    for (int g = 0; g < kGroups; ++g) choose(g, (sought[g] / d_ - 1) / 2);
    fit_unit();
    for (int g = 0; g < kGroups; ++g) round(g, multiple(scales_[g]));
  }

  // The best scale for its points among those that bring the largest weight to one of the form's aims.
  float search_scale(int g) {
    if (!(top_[g] > 1e-15f)) return 0;
    float best = 0, most = 0;
    for (const float aim : Form::kAims) {
      const Sums sums = round(g, top_[g] / aim);
      const float scale = sums.ax / sums.aa;
      if (!(scale * sums.ax > most)) continue;
      most = scale * sums.ax;
      best = scale;
    }
    return best;
  }

  // Of the whole scales below and above `sought` the better one. The points are then those of the upper one:
  // they are found anew when d is known.
  void choose(int g, float sought) {
    const int below = std::clamp(static_cast<int>(sought), 0, kMostScale - 1);
    float most = -HUGE_VALF;
    for (int code = below; code <= below + 1; ++code) {
      const float scale = multiple(code);
      const Sums sums = round(g, scale);
      const float gain = scale * (2 * sums.ax - scale * sums.aa);
      if (!(gain > most)) continue;
      most = gain;
      scales_[g] = code;
      sums_[g] = sums;
    }
  }

  // The best d for the scales that there are and the points that they had.
  void fit_unit() {
    double ax = 0, aa = 0;
    for (int g = 0; g < kGroups; ++g) {
      const double factor = 2 * scales_[g] + 1;
      ax += factor * sums_[g].ax;
      aa += factor * factor * sums_[g].aa;
    }
    if (!(aa > 0 && ax / aa < 65504)) return;
    const float fitted = float_of_half(half_of_float(static_cast<float>(ax / aa)));
    if (fitted > 0) d_ = fitted;
  }

  float multiple(int code) const { return d_ * static_cast<float>(2 * code + 1); }

  // Finds the points of a group.
  Sums round(int g, float scale) {
    const Tree& tree = tree_of<Form>();
    Floats ax = splat(0), aa = splat(0);
    for (int p = g * kPoints; p < (g + 1) * kPoints; ++p) {
      const float *x = magnitudes_ + p * kDims, *importance = importance_ + p * kDims;
      points_[p] = static_cast<std::uint16_t>(tree.nearest(x, 1 / scale, importance, points_[p]));
      for (int k = 0; k < kDims; k += kLanes) {
        const Floats value = floats_at(tree.point(points_[p]) + k);
        const Floats weighted = floats_at(importance + k) * value;
        ax += weighted * floats_at(x + k);
        aa += weighted * value;
      }
    }
    return {(ax[0] + ax[1]) + (ax[2] + ax[3]), (aa[0] + aa[1]) + (aa[2] + aa[3])};
  }

  float magnitudes_[kWeights], importance_[kWeights], top_[kGroups];
  unsigned signs_[kWeights / kDims] = {};  // a bit for each weight that is negative
  float d_ = 0;
  int scales_[kGroups] = {};
  Sums sums_[kGroups] = {};
  std::uint16_t points_[kWeights / kDims] = {};
};

}  // namespace

void encode_iq3_s(const float* weights, const float* columns, unsigned char* out) {
  GridFit<FormIQ3_S>(weights, columns).encode(out);
}

void encode_iq3_xxs(const float* weights, const float* columns, unsigned char* out) {
  GridFit<FormIQ3_XXS>(weights, columns).encode(out);
}

void encode_iq2_s(const float* weights, const float* columns, unsigned char* out) {
  GridFit<FormIQ2_S>(weights, columns).encode(out);
}

void encode_iq2_xs(const float* weights, const float* columns, unsigned char* out) {
  GridFit<FormIQ2_XS>(weights, columns).encode(out);
}

void encode_iq2_xxs(const float* weights, const float* columns, unsigned char* out) {
  GridFit<FormIQ2_XXS>(weights, columns).encode(out);
}

}  // namespace moeinf
