// mutants-score.mjs - evaluates the mutants (artificial mistakes) of an area of the code: how many mutants made a test
// fail, and which unnoticed mutants (survivors) have no reason in test/mutants.json.

import { createHash } from 'node:crypto'
import { dirname } from 'node:path'

/** The minimum percentage of mutants that the tests of an area must notice. */
export const LEAST_PERCENT = 85

/**
 * @typedef {object} Mutant
 * @property {string} file
 * @property {number} number The number of the line.
 * @property {string} line The text of the line, with single spaces.
 * @property {string} was
 * @property {string} became
 * @property {string} operator
 * @property {boolean} isKilled
 */

/**
 * An entry of test/mutants.json: a mutant that no test notices, with the reason. The entry identifies the mutant by the
 * text of its line, because line numbers change. If `was` or `became` is missing, the entry matches every change of the
 * line.
 * @typedef {{ file: string, line: string, was?: string, became?: string, reason: string }} Known
 */

/**
 * @typedef {object} Score
 * @property {string} area
 * @property {number} total
 * @property {number} killed
 * @property {number} percent
 * @property {boolean} isLow
 * @property {Mutant[]} survivors
 * @property {Mutant[]} unknown The survivors that no entry of test/mutants.json matches.
 * @property {Known[]} stale The entries of test/mutants.json that match no survivor.
 * @property {number} [minutes]
 */

/**
 * Returns true if the entry `known` of test/mutants.json describes the mutant.
 * @param {Known} known
 * @param {Mutant} mutant
 */
const fits = (known, mutant) =>
  known.file === mutant.file &&
  known.line === mutant.line &&
  (known.was ?? mutant.was) === mutant.was &&
  (known.became ?? mutant.became) === mutant.became

/**
 * Evaluates the mutants of an area.
 * @param {string} area
 * @param {readonly Mutant[]} mutants
 * @param {readonly Known[]} known The known survivors of all areas.
 * @param {{ isWhole: boolean, mayBeEmpty?: boolean }} options `isWhole`: true if `mutants` has all mutants of the area;
 * if it has only a sample, no entry is reported as stale. `mayBeEmpty`: if false, an area without mutants gets a score
 * of 0% instead of 100%.
 * @returns {Score}
 */
export function judge(area, mutants, known, { isWhole, mayBeEmpty = true }) {
  const survivors = mutants.filter(({ isKilled }) => !isKilled)
  const killed = mutants.length - survivors.length
  const own = known.filter(({ file }) => dirname(file) === `src/${area}` || file === `src/${area}.ts`)
  const percent = mutants.length > 0 ? (100 * killed) / mutants.length : mayBeEmpty ? 100 : 0
  return {
    area,
    total: mutants.length,
    killed,
    percent,
    survivors,
    isLow: percent < LEAST_PERCENT,
    unknown: survivors.filter((mutant) => !known.some((entry) => fits(entry, mutant))),
    stale: isWhole ? own.filter((entry) => !survivors.some((mutant) => fits(entry, mutant))) : [],
  }
}

/**
 * Formats the scores of areas as a table, one row per area.
 * @param {readonly Score[]} scores
 */
export function scoreTable(scores) {
  const rows = scores.map(({ area, killed, total, percent, unknown, minutes }) => [
    area,
    `${killed}/${total}`,
    `${percent.toFixed(1)}%`,
    `${total - killed - unknown.length} known`,
    `${unknown.length} unknown`,
    minutes === undefined ? '' : `${minutes.toFixed(1)} min`,
  ])
  const widths = [0, 1, 2, 3, 4, 5].map((column) => Math.max(0, ...rows.map((row) => row[column].length)))
  return rows
    .map((row) =>
      row
        .map((cell, column) => cell.padEnd(widths[column]))
        .join('  ')
        .trimEnd(),
    )
    .join('\n')
}

/**
 * Returns a pseudo-random number from 0 to 1 that depends only on `text`, so that a sample chosen with this number can
 * be reproduced.
 * @param {string} text
 */
export const drawn = (text) => createHash('sha256').update(text).digest().readUInt32BE(0) / 2 ** 32
