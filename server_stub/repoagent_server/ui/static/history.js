// What the statistics were at the last looks, and what happened between them.

const KEPT = 60;

export class History {
  constructor() {
    this.last = new Map();
    this.series = new Map();
  }

  // `document` is what v2/models/stats answers; `now` in seconds.
  add(document, now) {
    for (const [model, total] of totals(document)) {
      const before = this.last.get(model);
      if (before && total.count >= before.total.count) this.append(model, point(before, total, now));
      this.last.set(model, { total, now });
    }
  }

  append(model, value) {
    const values = this.series.get(model) ?? [];
    values.push(value);
    this.series.set(model, values.slice(-KEPT));
  }

  of(model) {
    return this.series.get(model) ?? [];
  }
}

// All versions of a model together.
function totals(document) {
  const found = new Map();
  for (const row of document.model_stats ?? []) {
    const total = found.get(row.name) ?? { count: 0, failed: 0, elapsed: 0, queued: 0 };
    const stats = row.inference_stats ?? {};
    total.count += stats.success?.count ?? 0;
    total.failed += stats.fail?.count ?? 0;
    total.elapsed += stats.success?.ns ?? 0;
    total.queued += stats.queue?.ns ?? 0;
    found.set(row.name, total);
  }
  return found;
}

function point(before, total, now) {
  const requests = total.count - before.total.count;
  const passed = Math.max(now - before.now, 1e-3);
  const mean = (nanoseconds) => (requests ? nanoseconds / requests / 1e9 : 0);
  return {
    rate: requests / passed,
    failed: (total.failed - before.total.failed) / passed,
    latency: mean(total.elapsed - before.total.elapsed),
    queue: mean(total.queued - before.total.queued),
  };
}
