// mutants-score.mjs - what mutants say of a room: how many were noticed, and which survivors nobody has given a reason for.

import { createHash } from 'node:crypto'
import { dirname } from 'node:path'

/** Of the mutants of a room, what its tests must notice. */
export const LEAST_PERCENT = 85

/**
 * @typedef {object} Mutant
 * @property {string} file
 * @property {number} number Of the line.
 * @property {string} line Its text, with single spaces.
 * @property {string} was
 * @property {string} became
 * @property {string} operator
 * @property {boolean} isKilled
 */

/**
 * A known survivor, by what stands in the file, since numbers of lines change. One without `was` or `became` stands for all
 * survivors of the line that fit the rest.
 * @typedef {{ file: string, line: string, was?: string, became?: string, reason: string }} Known
 */

/**
 * @typedef {object} Score
 * @property {string} room
 * @property {number} total
 * @property {number} killed
 * @property {number} percent
 * @property {boolean} isLow
 * @property {Mutant[]} survivors
 * @property {Mutant[]} unknown Those that nothing is known of.
 * @property {Known[]} stale What is known of mutants that do not survive, or are no more.
 * @property {number} [minutes]
 */

/** @param {Known} known @param {Mutant} mutant */
const fits = (known, mutant) =>
  known.file === mutant.file &&
  known.line === mutant.line &&
  (known.was ?? mutant.was) === mutant.was &&
  (known.became ?? mutant.became) === mutant.became

/**
 * @param {string} room
 * @param {readonly Mutant[]} mutants
 * @param {readonly Known[]} known Of all rooms.
 * @param {{ isWhole: boolean, mayBeEmpty?: boolean }} options `isWhole`: all mutants of the room are there, else what is known may be of
 *   others. `mayBeEmpty`: the room may have none, else none is too few.
 * @returns {Score}
 */
export function judge(room, mutants, known, { isWhole, mayBeEmpty = true }) {
  const survivors = mutants.filter(({ isKilled }) => !isKilled)
  const killed = mutants.length - survivors.length
  const own = known.filter(({ file }) => dirname(file) === `src/${room}` || file === `src/${room}.ts`)
  const percent = mutants.length > 0 ? (100 * killed) / mutants.length : mayBeEmpty ? 100 : 0
  return {
    room,
    total: mutants.length,
    killed,
    percent,
    survivors,
    isLow: percent < LEAST_PERCENT,
    unknown: survivors.filter((mutant) => !known.some((entry) => fits(entry, mutant))),
    stale: isWhole ? own.filter((entry) => !survivors.some((mutant) => fits(entry, mutant))) : [],
  }
}

/** @param {readonly Score[]} scores */
export function scoreTable(scores) {
  const rows = scores.map(({ room, killed, total, percent, unknown, minutes }) => [
    room,
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

/** A number from 0 to 1 that a text decides, for samples that are the same each time. @param {string} text */
export const drawn = (text) => createHash('sha256').update(text).digest().readUInt32BE(0) / 2 ** 32
