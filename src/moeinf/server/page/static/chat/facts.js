// What an answer cost, in one line.

import { bytesText, countText, percentText, rateText, secondsText } from "../shared.js";

/** last: the last object of its stream. */
export function factsOf({ prompt_eval_count: read, eval_count: tokens, eval_duration: nanoseconds, moeinf }) {
  const facts = [];
  if (tokens) facts.push(`${countText(tokens)} tokens`);
  if (tokens && nanoseconds) facts.push(`${rateText(tokens / (nanoseconds / 1e9))} tokens/s`);
  if (tokens && moeinf?.approx) facts.push(moeinf.approx);
  if (typeof moeinf?.hit_rate === "number") facts.push(`${percentText(moeinf.hit_rate)} hits`);
  if (typeof moeinf?.best_hit_rate === "number") {
    facts.push(`LRU ${percentText(moeinf.lru_hit_rate)}, at best ${percentText(moeinf.best_hit_rate)}`);
  }
  if (moeinf?.read_bytes) facts.push(`${bytesText(moeinf.read_bytes)} read`);
  if (moeinf?.stall_s >= 0.05) facts.push(`stalled ${secondsText(moeinf.stall_s)}`);
  if (read && tokens) facts.push(`context ${countText(read + tokens)}`);
  return facts.join(" · ");
}
