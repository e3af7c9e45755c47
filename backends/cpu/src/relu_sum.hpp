// out[s, j] = sum over h of weights[s, h] * max(dots[s, h, j], 0), the head sum of MQA logits. Template over V.
#pragma once

#include "codes.hpp"
#include "thread_pool.hpp"

namespace cpu_native {

template <class V>
struct ReluSumKernel {
    static constexpr int64_t columns_per_task = 1024;

    static void run(const ReluSum& job, int threads) {
        const int64_t parts = (job.num_columns + columns_per_task - 1) / columns_per_task;
        auto body = [&](int64_t task, int) {
            const int64_t row = task / parts, first = task % parts * columns_per_task;
            const int64_t last = first + columns_per_task < job.num_columns ? first + columns_per_task : job.num_columns;
            one_row(job, row, first, last);
        };
        run_tasks(job.num_rows * parts, threads, body);
    }

private:
    static void one_row(const ReluSum& job, int64_t row, int64_t first, int64_t last) {
        const float* dots = job.dots + row * job.dots_pitch_s;
        const float* weights = job.weights + row * job.weights_pitch_s;
        float* out = job.out + row * job.out_pitch;
        constexpr int wide = 4;
        int64_t j = first;
        for (; j + wide * V::lanes <= last; j += wide * V::lanes) {
            typename V::Vec sums[wide];
            for (int i = 0; i < wide; ++i) sums[i] = V::zero();
            for (int64_t h = 0; h < job.num_heads; ++h) {
                const auto weight = V::broadcast(weights[h * job.weights_pitch_h]);
                const float* line = dots + h * job.dots_pitch_h + j;
                for (int i = 0; i < wide; ++i) sums[i] = V::fma(weight, V::relu(V::load(line + i * V::lanes)), sums[i]);
            }
            for (int i = 0; i < wide; ++i) V::store(out + j + i * V::lanes, sums[i]);
        }
        for (; j < last; ++j) {
            float sum = 0;
            for (int64_t h = 0; h < job.num_heads; ++h) {
                const float dot = dots[h * job.dots_pitch_h + j];
                sum += weights[h * job.weights_pitch_h] * (dot < 0 ? 0.0f : dot);
            }
            out[j] = sum;
        }
    }
};

}  // namespace cpu_native
