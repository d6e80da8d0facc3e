/** A time as the kernel says it, without a zero behind the point: "90 s", "10 min", "2.5 h". */
export function timeText(seconds: number): string {
  if (seconds < 120) {
    return `${Math.round(seconds)} s`;
  }
  return seconds < 7200 ? `${Math.round(seconds / 60)} min` : `${Math.round(seconds / 360) / 10} h`;
}
