-- 30-day mortality after the first admission in half a year, from an OMOP CDM (5.3 or 5.4).
-- One row for each person. PostgreSQL and DuckDB; change concepts and dates to yours.
WITH admission AS (
    SELECT person_id, MIN(visit_start_date) AS day
    FROM visit_occurrence
    WHERE visit_concept_id IN (9201, 262)          -- inpatient; emergency and inpatient
      AND visit_start_date >= DATE '2023-01-01'
      AND visit_start_date < DATE '2023-07-01'     -- 30 days of follow-up for everyone
    GROUP BY person_id
),
stays AS (
    SELECT a.person_id,
           SUM(CAST(v.visit_end_date - v.visit_start_date AS INTEGER)) AS days
    FROM admission a
    JOIN visit_occurrence v ON v.person_id = a.person_id
    WHERE v.visit_concept_id IN (9201, 262)
      AND v.visit_end_date < a.day
      AND a.day - v.visit_start_date <= 365
    GROUP BY a.person_id
),
history AS (
    SELECT a.person_id,
           MAX(CASE WHEN n.ancestor_concept_id = 201820 THEN 1 ELSE 0 END) AS diabetes,
           MAX(CASE WHEN n.ancestor_concept_id = 316139 THEN 1 ELSE 0 END) AS heart_failure
    FROM admission a
    JOIN condition_occurrence c
      ON c.person_id = a.person_id AND c.condition_start_date <= a.day
    JOIN concept_ancestor n ON n.descendant_concept_id = c.condition_concept_id
    GROUP BY a.person_id
),
last_value AS (
    SELECT person_id, measurement_concept_id, value_as_number
    FROM (
        SELECT m.person_id, m.measurement_concept_id, m.value_as_number,
               ROW_NUMBER() OVER (
                   PARTITION BY m.person_id, m.measurement_concept_id
                   ORDER BY m.measurement_date DESC, m.measurement_id DESC
               ) AS place
        FROM admission a
        JOIN measurement m ON m.person_id = a.person_id
        WHERE m.measurement_date <= a.day
          AND a.day - m.measurement_date <= 30
          AND m.value_as_number IS NOT NULL
          AND ((m.measurement_concept_id = 3016723 AND m.unit_concept_id = 8840)
            OR (m.measurement_concept_id = 3047181 AND m.unit_concept_id = 8753))
    ) AS ranked
    WHERE place = 1
)
SELECT CASE WHEN p.gender_concept_id = 8507 THEN 'M' ELSE 'F' END AS sex,
       EXTRACT(YEAR FROM a.day) - p.year_of_birth AS age,
       COALESCE(s.days, 0) AS days_in_hospital_before,
       COALESCE(h.diabetes, 0) AS diabetes,
       COALESCE(h.heart_failure, 0) AS heart_failure,
       creatinine.value_as_number AS creatinine,   -- mg/dL; a gap is a gap
       lactate.value_as_number AS lactate,         -- mmol/L
       CASE WHEN d.death_date - a.day <= 30 THEN 1 ELSE 0 END AS death_30_days
FROM admission a
JOIN person p ON p.person_id = a.person_id
LEFT JOIN stays s ON s.person_id = a.person_id
LEFT JOIN history h ON h.person_id = a.person_id
LEFT JOIN last_value creatinine
  ON creatinine.person_id = a.person_id AND creatinine.measurement_concept_id = 3016723
LEFT JOIN last_value lactate
  ON lactate.person_id = a.person_id AND lactate.measurement_concept_id = 3047181
LEFT JOIN death d ON d.person_id = a.person_id AND d.death_date >= a.day
WHERE p.gender_concept_id IN (8507, 8532)
