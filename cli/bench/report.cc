#include "cli/bench/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>

#include "cli/machine.h"
#include "cli/terminal.h"

namespace headwater::cli {
namespace {

std::string us(double value) {
  return value < 10.0 ? fmt::format("{:.2f}", value) : value < 1000.0 ? fmt::format("{:.1f}", value) : fmt::format("{:.0f}", value);
}

}  // namespace

double geometric_mean_ratio(const std::vector<Row>& rows) {
  double sum = 0.0;
  int64_t count = 0;
  for (const Row& row : rows) {
    if (!row.fault.empty() || row.floor_ratio <= 0.0) continue;
    sum += std::log(row.floor_ratio);
    ++count;
  }
  return count > 0 ? std::exp(sum / static_cast<double>(count)) : 0.0;
}

std::string ceilings_line(const Ceilings& c, double steadiness) {
  return fmt::format(
      "{} thread{}: {:.1f} GFLOP/s of float32 multiply-adds ({}), {:.1f} GB/s read from memory; lowest sample {:.0f} % of the best",
      c.threads, c.threads == 1 ? "" : "s", c.fma_gflops, c.isa, c.dram_gbps, 100.0 * steadiness);
}

std::string report_text(const std::vector<Row>& rows, const Ceilings& ceilings, double steadiness) {
  Table table({"shape", "kernel", "min us", "median us", "spread %", "GB/s", "GFLOP/s", "floor us", "bound", "min/floor", "plan us",
               "schedule us", "schedule", "scratch", "runs", "copies"});
  for (const Row& r : rows) {
    if (!r.fault.empty()) continue;
    table.add({printable(r.name), r.kernel, us(r.min_us), us(r.median_us), fmt::format("{:.1f}", 100.0 * r.spread),
               fmt::format("{:.1f}", r.gbps), fmt::format("{:.1f}", r.gflops), us(r.floor_us), r.memory_bound ? "memory" : "FMA",
               fmt::format("{:.2f}", r.floor_ratio), us(r.plan_us), us(r.schedule_us), human_bytes(static_cast<double>(r.schedule_bytes)),
               human_bytes(static_cast<double>(r.scratch_bytes)), std::to_string(r.runs), std::to_string(r.copies)});
  }
  std::string out = cpu_name() + "; ceilings, " + ceilings_line(ceilings, steadiness) + "\n";
  if (const std::string busy = busy_machine(); !busy.empty()) out += "not a quiet machine: " + busy + "\n";
  if (!table.empty()) out += "\n" + table.text();
  for (const Row& r : rows) {
    if (!r.fault.empty()) out += fmt::format("{}: {}\n", printable(r.name), printable(r.fault));
  }
  if (!table.empty()) {
    out += fmt::format(
        "\ngeometric mean of min/floor: {:.3f}\nfloor = max(FLOPs / multiply-add ceiling, visible KV bytes / memory ceiling); cold: each "
        "run reads another copy of the KV;\nGB/s and GFLOP/s at the minimum; spread = (third - first quartile) / median\n",
        geometric_mean_ratio(rows));
  }
  return out;
}

nlohmann::ordered_json bench_json(const std::vector<Row>& rows, const Ceilings& ceilings, double steadiness) {
  nlohmann::ordered_json out;
  out["cpu"] = cpu_name();
  out["version"] = version();
  out["ceilings"] = {{"threads", ceilings.threads},
                     {"isa", ceilings.isa},
                     {"fma_gflops", ceilings.fma_gflops},
                     {"dram_gbps", ceilings.dram_gbps},
                     {"lowest_over_best", steadiness}};
  out["geometric_mean_floor_ratio"] = geometric_mean_ratio(rows);
  out["rows"] = nlohmann::ordered_json::array();
  for (const Row& r : rows) {
    nlohmann::ordered_json row;
    row["name"] = r.name;
    row["origin"] = r.origin;
    if (!r.fault.empty()) {
      row["fault"] = r.fault;
    } else {
      row["kernel"] = r.kernel;
      row["min_us"] = r.min_us;
      row["median_us"] = r.median_us;
      row["spread"] = r.spread;
      row["gbps"] = r.gbps;
      row["gflops"] = r.gflops;
      row["floor_us"] = r.floor_us;
      row["floor_ratio"] = r.floor_ratio;
      row["bound"] = r.memory_bound ? "memory" : "fma";
      row["flops"] = r.flops;
      row["kv_bytes"] = r.kv_bytes;
      row["runs"] = r.runs;
      row["copies"] = r.copies;
      row["worst_error_over_allowance"] = r.worst_error;
      row["plan_us"] = r.plan_us;
      row["schedule_us"] = r.schedule_us;
      row["schedule_bytes"] = r.schedule_bytes;
      row["scratch_bytes"] = r.scratch_bytes;
    }
    out["rows"].push_back(std::move(row));
  }
  return out;
}

Result<Comparison> compare(const std::vector<Row>& rows, const nlohmann::json& baseline) {
  if (!baseline.is_object() || !baseline.contains("rows") || !baseline["rows"].is_array()) return invalid("has no array \"rows\"");
  struct Earlier {
    double min_us = 0.0;
    double spread = 0.0;
  };
  std::map<std::string, Earlier> earlier;
  for (const nlohmann::json& row : baseline["rows"]) {
    if (!row.is_object() || !row.contains("name") || !row["name"].is_string()) return invalid("has a row without a name");
    if (!row.contains("min_us")) continue;
    const double spread = row.value("spread", nlohmann::json(0.0)).is_number() ? row.value("spread", 0.0) : 0.0;
    if (!row["min_us"].is_number() || row["min_us"].get<double>() <= 0.0) return invalid("has a row whose min_us is no positive number");
    earlier[row["name"].get<std::string>()] = {row["min_us"].get<double>(), spread};
  }
  Comparison result;
  Table table({"shape", "before us", "now us", "now/before", "noise %", "verdict"});
  for (const Row& row : rows) {
    if (!row.fault.empty()) continue;
    const auto found = earlier.find(row.name);
    if (found == earlier.end()) {
      table.add({printable(row.name), "", us(row.min_us), "", "", "not in the baseline"});
      continue;
    }
    const double ratio = row.min_us / found->second.min_us;
    const double noise = std::max({0.05, row.spread, found->second.spread});
    const bool slower = ratio > 1.0 + noise;
    result.slower += slower ? 1 : 0;
    ++result.compared;
    table.add({printable(row.name), us(found->second.min_us), us(row.min_us), fmt::format("{:.3f}", ratio),
               fmt::format("{:.1f}", 100.0 * noise),
               slower                        ? "slower"
               : ratio < 1.0 / (1.0 + noise) ? "faster"
                                             : "the same"});
    earlier.erase(found);
  }
  result.text = "\nagainst the baseline\n" + table.text();
  if (!earlier.empty()) result.text += fmt::format("{} of its shapes not measured now\n", earlier.size());
  if (result.compared == 0) return invalid("shares no row with this run");
  return result;
}

}  // namespace headwater::cli
